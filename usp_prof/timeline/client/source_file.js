// Entries inside the page as the source of a timeline: levels of detail, search, totals and details without a server.

const ENTRIES_PER_LEVEL = 512; // a level with fewer entries in a row is the coarsest
const LEVEL_FACTOR = 4;
const MOST_HITS = 2000, MOST_LONGEST = 100;

class FileSource {
  constructor(id) { this.id = id; }

  async head() {
    const text = document.getElementById(this.id).textContent.trim();
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const plain = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
    this.unpack(plain);
    return this.content;
  }

  unpack(buffer) {
    const length = new DataView(buffer).getUint32(0, true), head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    const n = head.counts.reduce((a, b) => a + b, 0);
    let at = 4 + length;
    const wide = () => { // four planes of bytes, the lowest first
      const column = new Float64Array(n), planes = [0, 1, 2, 3].map((i) => new Uint8Array(buffer, at + i * n, n));
      for (let i = 0; i < n; i++) column[i] = planes[0][i] + 256 * (planes[1][i] + 256 * (planes[2][i] + 256 * planes[3][i]));
      at += 4 * n;
      return column;
    };
    const gap = wide(), dur = wide(), name = wide(), category = new Uint8Array(buffer, at, n), coverage = new Uint8Array(buffer, at + n, n);
    this.content = head; this.rows = new Map();
    let entry = 0, place = 0;
    for (const [rank, rows] of Object.entries(head.rows)) {
      rows.forEach(([, kind], index) => {
        const count = head.counts[place++], tick = head.ticks_ns[kind === "host" ? 1 : 0], from = entry;
        let time = 0;
        for (let i = 0; i < count; i++, entry++) { time += gap[entry]; gap[entry] = time * tick; time += dur[entry]; dur[entry] *= tick; }
        const column = (values) => values.subarray(from, entry);
        const event = Int32Array.from({ length: count }, (_, i) => from + i);
        this.rows.set(`${rank}.${index}`, [{ bucket: 0, start: column(gap), dur: column(dur), name: column(name), category: column(category), coverage: column(coverage), event }]);
      });
    }
    this.start = gap; this.dur = dur; this.name = name; this.category = category; this.coverage = coverage;
  }

  level(label, pixel) { // the coarsest level whose buckets are about a pixel wide
    const levels = this.rows.get(label);
    for (;;) {
      const last = levels[levels.length - 1];
      const bucket = last.bucket ? last.bucket * LEVEL_FACTOR : 2 ** Math.ceil(Math.log2(Math.max(this.content.span_ns / 2 ** 20, 64)));
      if (bucket > 1.5 * pixel || last.start.length <= ENTRIES_PER_LEVEL) break;
      levels.push(coarser(last, bucket));
    }
    return levels.filter((level) => level.bucket <= 1.5 * pixel).pop();
  }

  async tile(rows, start, end, width) {
    const pixel = (end - start) / width, tile = { start_ns: start, end_ns: end, width, first: [0], places: new Map() }, parts = [];
    rows.forEach((row, i) => {
      const level = this.level(row.label, pixel), last = lowerBound(level.start, end);
      let first = lowerBound(level.start, start);
      if (first > 0 && level.start[first - 1] + level.dur[first - 1] > start) first--;
      tile.places.set(row.label, i); tile.first.push(tile.first[i] + last - first);
      parts.push([level, first, last]);
    });
    const n = tile.first[rows.length];
    Object.assign(tile, { start: new Float32Array(n), dur: new Float32Array(n), event: new Int32Array(n), name: new Uint32Array(n), category: new Uint8Array(n), coverage: new Uint8Array(n) });
    let to = 0;
    for (const [level, first, last] of parts) {
      for (let i = first; i < last; i++, to++) {
        tile.start[to] = (level.start[i] - start) / pixel; tile.dur[to] = level.dur[i] / pixel;
        for (const column of ["event", "name", "category", "coverage"]) tile[column][to] = level[column][i];
      }
    }
    return tile;
  }

  async search(pattern, ranks, kinds) {
    let expression;
    try { expression = new RegExp(pattern, "i"); } catch { return { fault: "not a regular expression" }; }
    const wanted = new Set(), hits = [];
    this.content.names.forEach((name, number) => { if (expression.test(name)) wanted.add(number); });
    for (const [label, [{ start, dur, name, event }]] of this.rowsOf(ranks, kinds)) {
      const [rank, row] = label.split(".").map(Number);
      for (let i = 0; i < start.length; i++) if (wanted.has(name[i])) hits.push([rank, row, start[i], dur[i], event[i]]);
    }
    hits.sort((a, b) => a[2] - b[2]);
    const longest = [...hits].sort((a, b) => b[3] - a[3]).slice(0, MOST_LONGEST);
    return { names: [...wanted], count: hits.length, hits: hits.slice(0, MOST_HITS), longest };
  }

  rowsOf(ranks, kinds) {
    return [...this.rows].filter(([label]) => {
      const [rank, row] = label.split(".").map(Number);
      return ranks.includes(rank) && kinds.includes(this.content.rows[rank][row][1]);
    });
  }

  async area([from, to], labels, ranks, kinds) {
    const rows = (labels ? [...this.rows].filter(([label]) => labels.includes(label)) : this.rowsOf(ranks, kinds)).filter(([label]) => this.kindOf(label) !== "counters");
    const byName = new Map(), byKind = new Map();
    for (const [label, [{ start, dur, name, category, coverage }]] of rows) {
      for (let i = Math.max(lowerBound(start, from) - 1, 0); i < start.length && start[i] < to; i++) {
        if (start[i] + dur[i] <= from) continue;
        const text = this.content.names[name[i]], kind = /^(exposed|contended) /.test(text) ? text : this.content.categories[category[i]];
        const inside = ((Math.min(start[i] + dur[i], to) - Math.max(start[i], from)) * coverage[i]) / 255, key = `${text}\n${kind}`;
        const sums = byName.get(key) || byName.set(key, [text, kind, 0, new Set(), 0, 0]).get(key), total = byKind.get(kind) || byKind.set(kind, [kind, 0, 0]).get(kind);
        sums[2]++; sums[3].add(label.split(".")[0]); sums[4] += inside; sums[5] = Math.max(sums[5], dur[i]);
        total[1]++; total[2] += inside;
      }
    }
    const names = [...byName.values()].map((row) => [...row.slice(0, 3), row[3].size, ...row.slice(4)]).sort((a, b) => b[4] - a[4]);
    return { rows: rows.length, kinds: [...byKind.values()].sort((a, b) => b[2] - a[2]), names: names.slice(0, 300), more: Math.max(names.length - 300, 0) };
  }

  kindOf(label) { const [rank, row] = label.split("."); return this.content.rows[rank][row][1]; }

  async slice(rank, event, picked) {
    const name = this.content.names[this.name[event]], bucket = this.content.buckets_ns[this.kindOf(`${rank}.${picked.index}`) === "host" ? 1 : 0];
    const place = { rank, row: picked.index, start_ns: this.start[event], dur_ns: this.dur[event] }, isMerged = this.coverage[event] < 255 && bucket;
    const facts = [["rank", String(rank)], ["kind", this.content.categories[this.category[event]]], ["duration", duration(place.dur_ns)], ["start", `${duration(place.start_ns)} after the first event of the run`]];
    if (isMerged) facts.push(["detail", `longest of several slices, ${Math.round(this.coverage[event] / 2.55)}% busy; this file merges slices below ${duration(bucket)}`]);
    const { start, dur, event: numbers } = this.rows.get(`${rank}.${picked.index}`)[0], at = event - numbers[0];
    const beside = (i) => (i in numbers ? { rank, row: picked.index, start_ns: start[i], dur_ns: dur[i], event: numbers[i] } : undefined);
    return { name, place, facts, previous: beside(at - 1), next: beside(at + 1) };
  }
}

function coarser(level, bucket) { // merge entries that start in the same bucket: from the first start to the last end
  const heads = [];
  for (let i = 0, last = -1; i < level.start.length; i++) {
    const cell = Math.floor(level.start[i] / bucket);
    if (cell !== last) { heads.push(i); last = cell; }
  }
  const n = heads.length, merged = { bucket, start: new Float64Array(n), dur: new Float64Array(n), name: new Float64Array(n), category: new Uint8Array(n), coverage: new Uint8Array(n), event: new Int32Array(n) };
  heads.forEach((first, at) => {
    const after = heads[at + 1] ?? level.start.length;
    let longest = first, busy = 0, end = 0;
    for (let i = first; i < after; i++) {
      if (level.dur[i] > level.dur[longest]) longest = i;
      busy += (level.dur[i] * level.coverage[i]) / 255; end = Math.max(end, level.start[i] + level.dur[i]);
    }
    merged.start[at] = level.start[first]; merged.dur[at] = end - level.start[first];
    merged.coverage[at] = Math.min(Math.max(Math.ceil((255 * busy) / Math.max(merged.dur[at], 1)), 1), 255);
    for (const column of ["name", "category", "event"]) merged[column][at] = level[column][longest];
  });
  return merged;
}

function lowerBound(values, wanted) { // the first place whose value is not below `wanted`
  let low = 0, high = values.length;
  while (low < high) { const middle = (low + high) >> 1; if (values[middle] < wanted) low = middle + 1; else high = middle; }
  return low;
}
