// The part of the address that the timeline owns. Methods of Timeline.
//
// The timeline writes its view into the address with `replaceState`, so that panning adds nothing to the browser's history
// and asks no server. The last view of each run is also kept in this window, for a return to the page by its tab.

const LAST_VIEW = (window.uspTimelineViews ||= new Map()); // source -> query string
const OWNED = ["range", "pins", "folds", "picked", "area", "notes", "find", "filter", "show", "by", "only"];
const PLACES = ["at", "focus"]; // where a link opens; replaced by `range` afterwards
const MOST_NOTES = 20, MOST_LETTERS = 2000, MOST_PATTERN = 120, MOMENT_NS = 1_000_000;

const ADDRESS = {
  readAddress() {
    if (this.data.file) { this.opening = { focus: this.data.focus ?? undefined }; return; }
    const url = new URLSearchParams(window.location.search), names = [...OWNED, ...PLACES];
    const found = names.some((name) => url.has(name)) ? url : new URLSearchParams(LAST_VIEW.get(this.source) || "");
    const read = (name) => (found.get(name) || "").slice(0, MOST_LETTERS);
    const rows = (text) => [...text.matchAll(/(?<![\d.])(\d{1,6})\.(\d{1,5})(?![\d.])/g)].map((each) => each[0]).filter((label) => this.lines.some((line) => line.label === label));
    this.pinned = new Set(rows(read("pins")));
    const folds = read("folds").split("-");
    this.folded = new Set(folds.includes("all") ? ["all"] : folds.filter((rank) => /^\d{1,6}$/.test(rank)).map(Number));
    this.notes = read("notes").split("|").map((note) => note.match(/^(\d{1,15}):(.+)$/s)).filter(Boolean).slice(0, MOST_NOTES)
      .map(([, at, text]) => ({ at_ns: Number(at), text }));
    this.find = read("find").slice(0, MOST_PATTERN); this.filter = read("filter").slice(0, MOST_PATTERN);
    const there = new Set(this.lines.map((line) => line.kind));
    if (found.has("show")) this.kinds = new Set(read("show").split(",").filter((kind) => kind !== "device" && there.has(kind)));
    this.by = (this.data.axes || []).includes(read("by")) ? read("by") : "";
    const only = parseRanks(read("only"), Object.keys(this.head.rows).map(Number));
    this.only = only.length ? only : null;
    const range = this.rangeOf(read("range"), "-?") || this.placeOf(read("at")) || this.data.at;
    if (range) [this.start, this.end] = range;
    const area = read("area").match(/^([\d-]+)(?::([\d.-]+))?$/), areaRange = area && this.rangeOf(area[1]);
    const areaRows = area ? rows(area[2] || "") : [];
    if (areaRange && areaRange[0] < this.head.span_ns && (areaRows.length || !area[2])) {
      this.selection = areaRange; this.area = areaRows.length ? new Set(areaRows) : null;
    }
    const picked = read("picked").match(/^(\d{1,6})\.(\d{1,9})$/), focus = read("focus").match(/^\d{1,6}$/);
    const isLacking = {
      pins: !this.pinned.size, only: !only.length, by: !this.by, range: !this.rangeOf(read("range"), "-?"), at: !this.placeOf(read("at")),
      show: read("show").split(",").some((kind) => kind !== "none" && !there.has(kind)), area: !this.selection, focus: !this.head.rows[read("focus")], picked: !picked,
    };
    this.tellIgnored(Object.keys(isLacking).filter((name) => read(name) && isLacking[name]).map((name) => `${name}=${read(name)}`));
    const isPlaced = [...names, "ranks"].some((name) => url.has(name));
    this.opening = { picked: picked && [Number(picked[1]), Number(picked[2])], focus: focus ? Number(focus[0]) : isPlaced ? undefined : this.data.focus };
  },

  rangeOf(text, sign = "") {
    const match = text.match(new RegExp(`^(${sign}\\d{1,15})-(\\d{1,15})$`));
    if (!match) return null;
    const slack = this.head.span_ns / 2, start = Math.max(Number(match[1]), -slack), end = Math.min(Number(match[2]), this.head.span_ns + slack);
    return start < end ? [start, end] : null;
  },

  // The range of a link: "middle" or a step's number, or times since the epoch of the trace, with a little room.
  placeOf(text) {
    const times = text.match(/^(\d{1,19})-(\d{1,19})$/);
    if (times) {
      const [start, end] = [1, 2].map((i) => Number(BigInt(times[i]) - BigInt(this.head.origin_ns)));
      const room = end > start ? Math.max((end - start) / 2, 2000) : Math.min(MOMENT_NS, this.head.span_ns / 50);
      return 0 <= start && start <= end && end <= this.head.span_ns ? [Math.max(start - room, 0), Math.min(end + room, this.head.span_ns)] : null;
    }
    const { steps } = this.head, step = text === "middle" ? steps[Math.floor(steps.length / 2)] : steps.find((each) => String(each.number) === text);
    const room = step && (step.end_ns - step.start_ns) / 20;
    return step ? [step.start_ns - room, step.end_ns + room] : null;
  },

  async afterOpening() { // what needs laid out rows
    const { picked, focus } = this.opening;
    if (picked) await this.select(...picked, false);
    if (picked && !this.picked) this.tellIgnored([...this.ignored, `picked=${picked.join(".")}`]);
    if (picked && this.picked) this.reveal(this.picked.rank, this.picked.index);
    else if (focus !== undefined) this.reveal(focus);
    if (this.find) this.search();
    this.listArea(); this.remember();
  },

  tellView() { // the rank wall marks what is in view
    if (this.owns()) window.dispatchEvent(new CustomEvent("usp-timeline-view", { detail: { source: this.source, start: this.start, end: this.end } }));
  },

  remember(delay = 250) {
    if (!this.owns() || !this.head || this.data.file) return;
    clearTimeout(this.addressTimer);
    if (delay) this.addressTimer = setTimeout(() => this.writeAddress(), delay); else this.writeAddress();
  },

  writeAddress() {
    if (!this.alive || window.location.pathname !== this.page) return; // a slow server leaves the canvas on the next page for a while
    const whole = this.start === 0 && this.end === this.head.span_ns, kinds = [...this.kinds].join(",") || "none";
    const values = [
      whole ? "" : `${Math.round(this.start)}-${Math.round(this.end)}`,
      [...this.pinned].join("-"), [...this.folded].join("-"), this.picked ? `${this.picked.rank}.${this.picked.event}` : "",
      this.selection ? [this.selection.join("-"), ...(this.area ? [[...this.area].join("-")] : [])].join(":") : "",
      this.notes.map((note) => `${note.at_ns}:${note.text}`).join("|"),
      this.find, this.filter, kinds === "exposed" ? "" : kinds, this.by, this.only ? formatRanks(this.only) : "",
    ];
    const url = new URL(window.location.href), own = new URLSearchParams();
    OWNED.forEach((name, i) => { url.searchParams.delete(name); if (values[i]) { url.searchParams.set(name, values[i]); own.set(name, values[i]); } });
    for (const name of PLACES) url.searchParams.delete(name);
    LAST_VIEW.set(this.source, own.toString());
    if (url.href !== window.location.href) window.history.replaceState(window.history.state, "", url);
  },
};
Object.assign(Timeline.prototype, ADDRESS);

function parseRanks(text, known) { // "0,2,4-7"
  const wanted = [...text.matchAll(/(\d{1,6})(?:-(\d{1,6}))?/g)].map(([, low, high]) => [Number(low), Number(high || low)]);
  return known.filter((rank) => wanted.some(([low, high]) => low <= rank && rank <= high)).sort((a, b) => a - b);
}

function formatRanks(ranks) {
  const spans = [];
  for (const rank of ranks) {
    const last = spans[spans.length - 1];
    if (last && rank === last[1] + 1) last[1] = rank; else spans.push([rank, rank]);
  }
  return spans.map(([low, high]) => (low === high ? `${low}` : `${low}-${high}`)).join(",");
}
