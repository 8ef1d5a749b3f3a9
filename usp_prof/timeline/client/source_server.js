// The dashboard's server as the source of a timeline.

class ServerSource {
  constructor(source) { this.source = source; }

  async get(path, query, signal) {
    const answer = await fetch(`/usp/${path}?${this.source}${query}`, { signal });
    if (!answer.ok) throw new Error(await answer.text());
    return answer;
  }

  async head() { return (await this.get("timeline", "")).json(); }

  async tile(rows, start, end, width, signal) {
    const answer = await this.get("tile", `&t0=${start}&t1=${end}&w=${width}&rows=${rows.map((row) => row.label).join("-")}`, signal);
    return decode(await answer.arrayBuffer(), rows);
  }

  async search(pattern, ranks, kinds) {
    return (await this.get("search", `&q=${encodeURIComponent(pattern)}&ranks=${ranks.join("-")}&kinds=${kinds.join("-")}`)).json();
  }

  async area([start, end], rows, ranks, kinds) {
    const which = rows ? `rows=${rows.join("-")}` : `ranks=${ranks.join("-")}&kinds=${kinds.join("-")}`;
    const query = `&t0=${start}&t1=${end}&${which}`, found = await (await this.get("area", query)).json();
    return { ...found, csv: `/usp/area?${this.source}${query}&as=csv` };
  }

  async slice(rank, event) { return (await this.get("slice", `&rank=${rank}&event=${event}`)).json(); }

  traceAddress([start, end], ranks) {
    return new URL(`/usp/trace?${this.source}&t0=${start}&t1=${end}&ranks=${ranks.join("-")}`, window.location.href).href;
  }
}
