// An area that was selected: what ran in it, by kind and by name, beneath the canvas; notes, and ways on. Methods of
// Timeline.
//
// The server adds an area up (see timeline/area.py) and the canvas lists it itself: nothing else of the page changes, so
// that none of it is drawn anew. The area and the notes live in the address (timeline_address.js).

const AREA_PX = 300; // the canvas gives this much of its height to the list
const COUNT = (number) => number.toLocaleString("en-US");
const AREA_HEADS = { kinds: ["kind", "calls", "time"], names: ["name", "kind", "calls", "ranks", "time", "longest"] };
const TIMES = new Set(["time", "longest"]);

const AREA = {
  // The rows are labels such as "3.0"; none: the range of all rows that are shown.
  selectArea(range, labels) {
    this.selection = range; this.area = labels.length ? new Set(labels) : null;
    this.remember(0); this.resize(); this.keepAreaInView(); this.listArea();
  },

  dropArea() { // "Escape", the list's own button, or a click on the canvas
    this.selection = this.area = this.listedQuery = null;
    delete this.root.dataset.listed;
    if (this.list) this.list.remove();
    this.list = null;
    this.remember(0); this.resize();
  },

  keepAreaInView() { // the canvas is lower than it was when the area was drawn
    const rows = this.area ? this.rows.filter((row) => this.area.has(row.label) && !row.pinned) : [];
    if (!rows.length) return;
    const last = rows[rows.length - 1], hidden = this.rowY(last) + last.height - this.viewHeight;
    if (hidden > 0) this.scroll(Math.min(hidden, this.rowY(rows[0]) - AXIS - (this.band || 0)));
  },

  areaQuery() {
    const [start, end] = this.selection;
    const shown = [...new Set(this.lines.map((line) => line.rank))].filter((rank) => !this.data.ranks || this.data.ranks.includes(rank));
    const rows = this.area ? `rows=${[...this.area].join("-")}` : `ranks=${shown.join("-")}&kinds=${["device", ...(this.data.kinds || [])].join("-")}`;
    return `${this.source}&t0=${start}&t1=${end}&${rows}`;
  },

  async listArea() {
    if (!this.selection || !this.owns()) return;
    const query = this.areaQuery();
    if (query === this.listedQuery) return;
    this.listedQuery = query;
    let answer;
    try {
      const response = await fetch(`/usp/area?${query}`);
      if (!response.ok) throw new Error(await response.text());
      answer = await response.json();
    } catch (error) {
      answer = { fault: error.message };
    }
    if (!this.alive || query !== this.listedQuery) return; // another one was selected meanwhile
    this.drawArea(answer, query);
    this.root.dataset.listed = query;
  },

  drawArea(answer, query) {
    if (!this.list) {
      this.list = this.root.appendChild(document.createElement("div"));
      this.list.className = "usp-area";
      this.list.addEventListener("keydown", (event) => event.stopPropagation()); // Streamlit's keys are not meant
    }
    const head = element("div", "usp-area-head"), close = element("button", "", "✕");
    close.title = "no selection (Escape)"; close.addEventListener("click", () => this.dropArea());
    const where = this.area ? `on ${COUNT(answer.rows)} ${answer.rows === 1 ? "row" : "rows"}` : "on the ranks shown";
    const title = answer.fault ? `the area was not listed: ${answer.fault}` : `What ran in the ${duration(this.selection[1] - this.selection[0])} selected, ${where}`;
    head.append(element("strong", "", title), ...(answer.fault ? [] : this.waysOn(query)), close);
    const tables = element("div", "usp-area-tables");
    if (!answer.fault) tables.append(this.areaTable("kinds", answer.kinds), this.areaTable("names", answer.names, answer.more));
    this.list.replaceChildren(head, tables);
  },

  waysOn(query) { // a note at the start of the area, its table as a file, its range in Perfetto
    const [start, end] = this.selection, note = element("input");
    note.placeholder = "note at its start"; note.maxLength = 60; note.setAttribute("aria-label", "Note at the start of the selection");
    note.value = this.notes.find((each) => each.at_ns === start)?.text || "";
    note.addEventListener("change", () => this.writeNote(start, note.value));
    const ranks = [...new Set(this.area ? [...this.area].map((label) => label.split(".")[0]) : this.rows.map((row) => row.rank))];
    const trace = new URL(`/usp/trace?${this.source}&t0=${start}&t1=${end}&ranks=${ranks.join("-")}`, window.location.href).href;
    const links = [link("CSV", `/usp/area?${query}&as=csv`), link("Download for Perfetto", trace)];
    if (this.data.perfetto) links.push(link("Open this range in Perfetto", `/perfetto/index.html#!/?url=${encodeURIComponent(trace)}`));
    else links.push(element("small", "", "pip install 'usp-prof[perfetto]' opens it here"));
    return [note, ...links];
  },

  writeNote(at_ns, typed) {
    const text = typed.replaceAll("|", " ").trim();
    this.notes = [...this.notes.filter((each) => each.at_ns !== at_ns), ...(text ? [{ at_ns, text }] : [])].sort((a, b) => a.at_ns - b.at_ns);
    this.remember(0); this.draw();
  },

  // Times of a column are on one scale, named in its head. A click on a head sorts by it.
  areaTable(kind, rows, more = 0) {
    const heads = AREA_HEADS[kind], box = element("div", `usp-area-${kind}`), table = box.appendChild(element("table"));
    const scales = heads.map((head, place) => (TIMES.has(head) ? timeScale(rows.map((row) => row[place])) : null));
    const colors = new Map(this.head.categories.map((category, i) => [category, this.data.colors[i]]));
    const fill = (sorted) => body.replaceChildren(...sorted.map((row) => {
      const line = element("tr");
      row.forEach((value, place) => {
        const cell = line.appendChild(element("td", typeof value === "number" ? "number" : ""));
        if (heads[place] === "kind") cell.appendChild(element("i")).style.background = colors.get(value.replace(/^exposed /, ""));
        cell.append(scales[place] ? scales[place].text(value) : typeof value === "number" ? COUNT(value) : value);
        if (heads[place] === "name") cell.title = value;
      });
      return line;
    }));
    const titles = table.appendChild(element("thead")).appendChild(element("tr")), body = table.appendChild(element("tbody"));
    let by = heads.indexOf("time"), up = false;
    heads.forEach((head, place) => {
      const title = titles.appendChild(element("th", typeof rows[0]?.[place] === "number" ? "number" : ""));
      const button = title.appendChild(element("button", "", scales[place] ? `${head} [${scales[place].unit}]` : head));
      button.addEventListener("click", () => {
        up = by === place ? !up : typeof rows[0]?.[place] !== "number"; by = place;
        fill([...rows].sort((a, b) => (up ? 1 : -1) * (a[place] < b[place] ? -1 : a[place] > b[place] ? 1 : 0)));
      });
    });
    fill(rows);
    if (more) box.appendChild(element("small", "", `and ${COUNT(more)} names more in the CSV`));
    return box;
  },
};
Object.assign(Timeline.prototype, AREA);

function element(tag, name = "", text = "") {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text) made.textContent = text;
  return made;
}

function link(text, address) {
  const made = element("a", "", text);
  made.href = address; made.target = "_blank"; made.rel = "noopener";
  return made;
}

function timeScale(values) {
  const most = Math.max(0, ...values);
  const [factor, unit] = most >= 1e9 ? [1e9, "s"] : most >= 1e6 ? [1e6, "ms"] : most >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  const decimals = factor === 1 ? 0 : most / factor >= 100 ? 1 : most / factor >= 10 ? 2 : 3;
  const text = (value) => (value / factor).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  return { unit, text };
}
