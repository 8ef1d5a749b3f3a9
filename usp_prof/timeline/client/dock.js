// The dock below the canvas: details of the slice that was clicked, or totals of the selected area. Methods of Timeline.

const DOCK_PX = 216;
const COUNT = (number) => number.toLocaleString("en-US");
const AREA_HEADS = { kinds: ["kind", "calls", "time"], names: ["name", "kind", "calls", "ranks", "time", "longest"] };
const TIMES = new Set(["time", "longest"]);

const DOCK = {
  buildDock() {
    this.dock = this.root.appendChild(element("div", "usp-dock"));
    this.dock.addEventListener("keydown", (event) => { if (event.composedPath()[0].matches("input")) event.stopPropagation(); });
  },

  hasDock() { return this.owns() && this.showsDock && Boolean(this.picked || this.selection); },
  dockHeight() { return (this.hasDock() ? DOCK_PX : 0) + (this.panel?.offsetHeight || 0); },

  toggleDock() { this.showsDock = !this.showsDock; this.showDock(); },

  showDock() {
    this.dock.style.display = this.hasDock() ? "block" : "none";
    this.resize();
  },

  // --- details of a slice -----------------------------------------------------------------------------------------

  pick(slice) { // a slice {rank, event, start_ns, dur_ns, index} or null
    this.picked = slice; this.members = []; this.flows = []; this.around = {};
    this.remember(0);
    if (slice) this.select(slice.rank, slice.event); else { this.showDock(); this.draw(); }
  },

  async select(rank, event, isClicked = true) {
    const wanted = (this.detailed = `${rank}.${event}`);
    let details;
    try { details = await this.from.slice(rank, event, this.picked); } catch (error) { details = isClicked ? { fault: error.message } : null; }
    if (!this.alive || wanted !== this.detailed) return;
    if (details?.place) this.picked = { rank, event, start_ns: details.place.start_ns, dur_ns: details.place.dur_ns, index: details.place.row };
    if (!details || !this.picked) { this.picked = null; return; }
    this.members = details.members || []; this.flows = details.flows || []; this.around = { [-1]: details.previous, 1: details.next };
    this.selection = this.area = this.listedQuery = null;
    this.drawDetails(details); this.showDock(); this.remember(0); this.draw();
    this.root.dataset.detailed = wanted;
  },

  drawDetails(details) {
    const head = element("div", "usp-dock-head"), name = element("strong", "usp-name", details.name || "");
    name.title = details.name || "";
    head.append(name, element("span", "usp-grow"));
    this.closeButton(head, () => this.pick(null));
    const parts = element("div", "usp-dock-parts");
    if (details.fault) parts.append(element("p", "", `The details did not load: ${details.fault}`));
    else {
      const facts = parts.appendChild(element("dl"));
      for (const [what, value] of details.facts) facts.append(element("dt", "", what), element("dd", "", value));
      parts.append(this.relatives("Related", details.links), this.relatives(`The same call on ${(details.members || []).length} ranks`, details.members));
      if (details.arguments) {
        const more = parts.appendChild(element("details", "usp-arguments"));
        more.append(element("summary", "", "All arguments in the trace"), element("pre", "", JSON.stringify(details.arguments, null, 1)));
      }
    }
    this.dock.replaceChildren(head, parts);
  },

  relatives(title, places) { // slices that belong to this one; a click goes there
    const box = element("div", "usp-relatives");
    if (!places?.length) return box;
    box.append(element("h4", "", title));
    for (const place of places) {
      const where = place.says || `rank ${place.rank}`;
      const made = this.button(`${where}: ${duration(place.dur_ns)}`, place.name || where, () => this.visit(place), box);
      const gap = this.picked && place.start_ns - this.picked.start_ns;
      if (gap) made.append(element("small", "", ` ${gap > 0 ? "+" : "−"}${duration(Math.abs(gap))}`));
    }
    return box;
  },

  closeButton(head, act) {
    const close = this.button("✕", "Close (Escape)", act, head);
    close.className = "usp-close";
  },

  neighbor(by) { this.visit(this.around[by]); }, // the slice before or after the picked one, on its row

  follow(by) { // along the arrows: from a launch to its work and back, and through the parts of one call
    const isPicked = ({ rank, event }) => rank === this.picked.rank && event === this.picked.event;
    const arrow = this.flows.find((ends) => isPicked(ends[by > 0 ? 0 : 1])), parts = this.members.length;
    const part = this.members.findIndex(isPicked);
    if (arrow) this.visit(arrow[by > 0 ? 1 : 0]);
    else if (part >= 0) this.visit(this.members[(part + by + parts) % parts]);
  },

  visit(place) { // pick a slice and bring it into view
    if (!place) return;
    this.goTo(place); this.pick({ ...place, index: place.row });
  },

  // --- marks: notes at a time -------------------------------------------------------------------------------------

  mark() { // at the start of the selection or of the picked slice; a second time removes it
    const at_ns = Math.round(this.selection ? this.selection[0] : this.picked ? this.picked.start_ns : this.toNs(this.cursor ?? this.gutter() + this.plot() / 2));
    const length = this.selection ? this.selection[1] - this.selection[0] : this.picked?.dur_ns;
    const isMarked = this.notes.some((note) => note.at_ns === at_ns);
    this.writeNote(at_ns, isMarked ? "" : length ? duration(length) : `mark ${this.notes.length + 1}`);
  },

  writeNote(at_ns, typed) {
    const text = typed.replaceAll("|", " ").trim();
    this.notes = [...this.notes.filter((each) => each.at_ns !== at_ns), ...(text ? [{ at_ns, text }] : [])].sort((a, b) => a.at_ns - b.at_ns);
    this.remember(0); this.draw();
  },

  // --- totals of an area ------------------------------------------------------------------------------------------

  // The rows are labels such as "3.0"; none: the range of all rows that are shown.
  selectArea(range, labels) {
    this.selection = range; this.area = labels.length ? new Set(labels) : null;
    this.picked = null; this.members = []; this.flows = []; this.around = {};
    this.showsDock = true; this.dock.replaceChildren(); this.showDock();
    this.remember(0); this.keepAreaInView(); this.listArea();
  },

  dropArea() {
    this.selection = this.area = this.listedQuery = null;
    delete this.root.dataset.listed;
    this.showDock(); this.remember(0);
  },

  keepAreaInView() { // the dock covers a part of the canvas
    const rows = this.area ? this.rows.filter((row) => this.area.has(row.label) && !row.pinned) : [];
    if (!rows.length) return;
    const last = rows[rows.length - 1], hidden = this.rowY(last) + last.height - this.viewHeight;
    if (hidden > 0) this.scroll(Math.min(hidden, this.rowY(rows[0]) - AXIS - (this.band || 0)));
  },

  async listArea() {
    if (!this.selection || !this.owns()) return;
    const rows = this.area ? [...this.area] : null, query = JSON.stringify([this.selection, rows, this.ranks(), [...this.kinds]]);
    if (query === this.listedQuery) return;
    this.listedQuery = query;
    let answer;
    try { answer = await this.from.area(this.selection, rows, this.ranks(), ["device", ...this.kinds]); } catch (error) { answer = { fault: error.message }; }
    if (!this.alive || query !== this.listedQuery) return; // another area was selected meanwhile
    this.drawArea(answer); this.showDock();
    this.root.dataset.listed = query;
  },

  drawArea(answer) {
    const head = element("div", "usp-dock-head usp-area-head"), rows = answer.rows;
    const where = this.area ? `on ${COUNT(rows)} ${rows === 1 ? "row" : "rows"}` : "on the ranks shown";
    const title = answer.fault ? `The totals did not load: ${answer.fault}` : `Selected ${duration(this.selection[1] - this.selection[0])} ${where}`;
    head.append(element("strong", "", title), element("span", "usp-grow"), ...(answer.fault ? [] : this.areaLinks(answer)));
    this.closeButton(head, () => this.dropArea());
    const tables = element("div", "usp-dock-parts usp-area-tables");
    if (!answer.fault) tables.append(this.areaTable("kinds", answer.kinds), this.areaTable("names", answer.names, answer.more));
    this.dock.replaceChildren(head, tables);
  },

  areaLinks(answer) { // a note at the start of the area, its table as a file, its range in Perfetto
    const start = this.selection[0], note = element("input");
    note.placeholder = "note at its start"; note.maxLength = 60; note.setAttribute("aria-label", "Note at the start of the selection");
    note.value = this.notes.find((each) => each.at_ns === start)?.text || "";
    note.addEventListener("change", () => this.writeNote(start, note.value));
    if (!answer.csv) return [note];
    const ranks = [...new Set(this.area ? [...this.area].map((label) => label.split(".")[0]) : this.rows.map((row) => row.rank))];
    const trace = this.from.traceAddress(this.selection, ranks), links = [link("CSV", answer.csv), link("Download for Perfetto", trace)];
    if (this.data.perfetto) links.push(link("Open this range in Perfetto", `/perfetto/index.html#!/?url=${encodeURIComponent(trace)}`));
    return [note, ...links];
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
    if (more) box.appendChild(element("small", "", `${COUNT(more)} more names are in the CSV`));
    return box;
  },
};
Object.assign(Timeline.prototype, DOCK);

function timeScale(values) {
  const most = Math.max(0, ...values);
  const [factor, unit] = most >= 1e9 ? [1e9, "s"] : most >= 1e6 ? [1e6, "ms"] : most >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  const decimals = factor === 1 ? 0 : most / factor >= 100 ? 1 : most / factor >= 10 ? 2 : 3;
  const text = (value) => (value / factor).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  return { unit, text };
}
