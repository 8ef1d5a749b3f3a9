// The timeline of all ranks: a canvas that is panned and zoomed like a map.
//
// The server answers tiles (see timeline/tiles.py). Between tiles the last one is stretched, so that the picture follows
// the hand in the next frame; a sharp tile replaces it as soon as it arrives. Nothing here knows what a trace is: rows,
// names, categories and overlays come from the server. timeline_tiles.js decodes tiles, timeline_paint.js paints them,
// timeline_hand.js follows mouse and keys, timeline_area.js lists what was selected, timeline_address.js keeps the link,
// timeline_play.js morphs from recorded to predicted; all are one script in the browser.

// Pixels: the names at the left, the axis above, the strip of the whole run over it, the rows by kind, between ranks.
const GUTTER = 180, AXIS = 48, MAP = 10, GAP = 6, BELOW = 82; // BELOW: two lines of help
const LEAST = 260; // of the canvas over a list of what was selected
const NARROW = 480, SLIM_GUTTER = 84; // a narrower canvas names ranks alone: a pointer at a row tells its name
const ROW = { device: 18, host: 13, exposed: 12, actions: 16, path: 12, counters: 26 };
const LABEL_PX = 36; // a narrower slice has no name
const SETTLE_MS = 12; // after the last turn of the wheel, before a tile is asked for
const MARGIN = 0.3; // a tile reaches so far beyond the view on each side, as a share of it

export default function (component) {
  const { data, parentElement, setStateValue } = component;
  const root = parentElement.querySelector(".usp-timeline");
  if (root.timeline && root.timeline.source === data.source && root.timeline.data.play === data.play) root.timeline.update(data, setStateValue);
  else {
    if (root.timeline) root.timeline.destroy();
    root.timeline = new Timeline(root, data, setStateValue);
  }
  return () => { if (!root.isConnected && root.timeline) { root.timeline.destroy(); root.timeline = null; } };
}

class Timeline {
  constructor(root, data, report) {
    this.page = window.location.pathname;
    this.root = root; this.source = data.source; this.report = report; this.data = data;
    this.alive = true; this.tile = null; this.scrollY = 0; this.box = null; this.pattern = null;
    this.picked = data.picked || null; this.members = [];
    this.pinned = new Set(data.pinned || []);
    this.notes = data.notes || [];
    this.selection = data.area ? data.area.range : null;
    this.area = data.area && data.area.rows.length ? new Set(data.area.rows) : null;
    this.folded = new Set(data.compact ? ["all"] : data.folded || []);
    root.replaceChildren();
    this.canvas = root.appendChild(document.createElement("canvas"));
    this.canvas.tabIndex = 0;
    this.tip = root.appendChild(document.createElement("div"));
    this.tip.className = "usp-tip";
    this.context = this.canvas.getContext("2d");
    this.strip = document.createElement("canvas");
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(root);
    (window.uspTimelines ||= new Set()).add(this);
    this.listen();
    this.load();
  }

  async load() {
    if (this.data.play) { await this.loadPlay(); return; }
    try {
      const answer = await fetch(`/usp/timeline?${this.source}`);
      if (!answer.ok) throw new Error(await answer.text());
      this.head = await answer.json();
    } catch (error) {
      this.message = `the timeline did not load: ${error.message}; asking again …`; this.draw();
      if (this.alive) setTimeout(() => this.load(), 2000);
      return;
    }
    const asked = this.data.jump || this.data.range;
    this.begin(asked ? asked[0] : 0, asked ? asked[1] : this.head.span_ns);
  }

  begin(start, end) { // the head is there: lay its rows out and show a range
    this.message = null; this.start = start; this.end = end;
    this.names = this.head.names;
    const labels = this.head.labels || {};
    this.lines = Object.entries(this.head.rows).flatMap(([rank, rows]) => rows.map(([track, kind, depth, lane], index) => ({
      rank: Number(rank), index, track: depth ? "" : track, base: track, depth, lane, kind,
      label: `${rank}.${index}`, rank_label: labels[rank] || `rank ${rank}`,
    })));
    this.recall();
    // What the link names is known already. Asking for another run while one goes back in the history would make
    // Streamlit take it for a step forward, and drop the pages that lay ahead.
    const { picked } = this, linked = this.data.picked;
    const known = picked && linked && linked.rank === picked.rank && linked.event === picked.event;
    if (picked && !known) this.report("picked", { rank: picked.rank, event: picked.event });
    this.update(this.data, this.report);
  }

  update(data, report) {
    const changed = (name) => data[name] && JSON.stringify(data[name]) !== JSON.stringify(this.data[name]);
    const jump = changed("jump") ? data.jump : changed("at") ? data.at : null;
    if (changed("notes")) this.notes = data.notes;
    this.data = data; this.report = report;
    if (!this.head) return;
    if (jump) { [this.start, this.end] = jump; this.remember(); }
    const focuses = data.focus && JSON.stringify(data.focus) !== this.focused;
    this.setMatched(data.matched || []);
    this.members = data.members || [];
    this.layout(); this.resize(); this.remember(); this.tellView(); this.listArea();
    if (focuses) { this.focused = JSON.stringify(data.focus); this.reveal(data.focus.rank, data.focus.row); }
  }

  reveal(rank, index) { // scroll until a row is in view, and frame it; without a row, the rank's first
    if (this.folded.has(rank) || this.folded.has("all")) { this.folded.delete("all"); this.folded.delete(rank); this.layout(); }
    const row = this.rows.find((each) => each.rank === rank && (index === undefined || each.index === index));
    if (!row || row.pinned) return;
    const room = this.viewHeight - AXIS - (this.band || 0), y = row.y - (this.band || 0);
    if (index === undefined) this.scroll(y - GAP - this.scrollY);
    else if (y < this.scrollY || y + row.height > this.scrollY + room) this.scroll(y - room / 3 - this.scrollY);
    this.framed = index === undefined ? null : row.label;
    this.draw();
  }

  setMatched(numbers) { // the names that a search found; all others are dimmed
    this.pattern = numbers.length ? new Uint8Array(this.names.length) : null;
    for (const number of numbers) this.pattern[number] = 1;
  }

  layout() {
    const wanted = this.data.ranks ? new Set(this.data.ranks) : null, shown = new Set(["device", ...(this.data.kinds || [])]);
    const rows = this.lines.filter((row) => (!wanted || wanted.has(row.rank)) && shown.has(row.kind) && !this.isFolded(row));
    const order = new Map((this.data.ranks || []).map((rank, i) => [rank, i]));
    const below = { device: 1, host: 2, counters: 3 }; // what is laid over a rank comes first
    const key = (row) => [this.pinned.has(row.label) ? 0 : 1, order.get(row.rank) ?? row.rank, below[row.kind] || 0, row.index];
    rows.sort((a, b) => inOrder(key(a), key(b)));
    let y = GAP, last = null;
    this.band = 0; // pinned rows stay in a band at the top while the others scroll beneath it
    const called = this.data.labels || {};
    this.rows = rows.map((row) => {
      const pinned = this.pinned.has(row.label);
      if (last !== null && (last.rank !== row.rank || last.pinned !== pinned)) y += GAP;
      const placed = { ...row, rank_label: called[row.rank] || row.rank_label, pinned, y, height: ROW[row.kind] };
      y += placed.height;
      if (pinned) this.band = y + GAP / 2;
      last = placed;
      return placed;
    });
    this.height = y;
  }

  // A folded rank keeps what tells most: its exposed communication and its compute.
  isFolded(row) {
    if (!this.folded.has("all") && !this.folded.has(row.rank)) return false;
    return !(row.kind === "exposed" && !row.depth) && !(row.kind === "device" && row.base === "compute" && !row.depth);
  }

  fold(rank) {
    if (this.folded.has(rank)) this.folded.delete(rank); else this.folded.add(rank);
    this.layout(); this.resize(); this.remember();
  }

  resize() {
    const width = Math.max(this.root.clientWidth, 320), ratio = window.devicePixelRatio || 1;
    const scrolled = document.querySelector("[data-testid='stMain']")?.scrollTop || 0;
    const top = this.root.getBoundingClientRect().top + scrolled;
    const listed = this.selection && this.owns();
    const room = this.data.tall ? window.innerHeight - top - BELOW - (listed ? AREA_PX : 0) : 0;
    const least = listed ? Math.min(LEAST, this.data.height || LEAST) : this.data.height || 560;
    const ofRows = Math.max((this.height || 0) + AXIS + 12, 120);
    const height = Math.min(Math.max(least, room), ofRows);
    const same = width === this.width && height === this.viewHeight && ratio === this.ratio;
    this.width = width; this.viewHeight = height; this.ratio = ratio;
    if (!same) {
      this.canvas.style.width = `${width}px`; this.canvas.style.height = `${height}px`;
      this.canvas.width = width * ratio; this.canvas.height = height * ratio;
      this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.paint(); // a resized canvas is blank: it is painted before anybody sees it
    }
    this.scroll(0); this.request(0);
  }

  destroy() {
    this.alive = false; cancelAnimationFrame(this.playing);
    window.uspTimelines.delete(this);
    this.observer.disconnect();
    window.removeEventListener("mouseup", this.onUp);
    if (this.abort) this.abort.abort();
    cancelAnimationFrame(this.frame);
    this.root.replaceChildren();
  }

  // --- what is in view -------------------------------------------------------------------------------------------

  visible() {
    const top = this.scrollY + (this.band || 0), bottom = this.scrollY + this.viewHeight - AXIS;
    return (this.rows || []).filter((row) => row.pinned || (row.y + row.height >= top && row.y <= bottom));
  }

  isNarrow() { return this.width < NARROW; }
  gutter() { return this.isNarrow() ? SLIM_GUTTER : GUTTER; }
  plot() { return this.width - this.gutter(); }
  toX(ns) { return this.gutter() + ((ns - this.start) / (this.end - this.start)) * this.plot(); }
  toNs(x) { return this.start + ((x - this.gutter()) / this.plot()) * (this.end - this.start); }

  request(delay = SETTLE_MS) {
    if (!this.head) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetchTile(), delay);
  }

  async fetchTile() {
    if (this.data.play) { this.draw(); return; }
    const rows = this.visible();
    if (!rows.length || !this.alive) return;
    const margin = (this.end - this.start) * MARGIN;
    const start = Math.floor(this.start - margin), end = Math.ceil(this.end + margin);
    const width = Math.round(this.plot() * (1 + 2 * MARGIN));
    const wanted = rows.map((row) => `${row.rank}.${row.index}`).join("-");
    const query = `${this.source}&t0=${start}&t1=${end}&w=${width}&rows=${wanted}`;
    if (query === this.asked) return;
    this.asked = query;
    if (this.abort) this.abort.abort();
    this.abort = new AbortController();
    try {
      const answer = await fetch(`/usp/tile?${query}`, { signal: this.abort.signal });
      if (!answer.ok) throw new Error(await answer.text());
      this.tile = decode(await answer.arrayBuffer(), rows);
      this.message = null;
      this.away = 0;
    } catch (error) {
      if (error.name === "AbortError") return;
      this.asked = null; // the picture stays as it is, and is asked for again, ever less often
      this.away = (this.away || 0) + 1;
      this.request(Math.min(500 * 2 ** this.away, 10_000));
    }
    this.draw();
  }

  zoom(factor, x) {
    const pivot = this.toNs(x), span = Math.min(Math.max((this.end - this.start) * factor, 50), this.head.span_ns * 1.2);
    const share = (x - this.gutter()) / this.plot();
    this.start = pivot - span * share; this.end = this.start + span;
    this.moved();
  }

  show(range) { if (range[1] - range[0] >= 1) { this.start = range[0]; this.end = Math.max(range[1], range[0] + 50); this.moved(); } }

  pan(ns) { this.start += ns; this.end += ns; this.moved(); }

  moved(led = false) {
    if (this.data.group && !led) this.lead();
    const slack = (this.end - this.start) * 0.5, span = this.end - this.start;
    if (this.start < -slack) { this.start = -slack; this.end = this.start + span; }
    if (this.end > this.head.span_ns + slack) { this.end = this.head.span_ns + slack; this.start = this.end - span; }
    this.request(); this.draw(); this.remember(); this.tellView();
  }

  lead() { // timelines of one group show the same time since their own zero
    for (const other of window.uspTimelines || []) {
      if (other === this || other.data.group !== this.data.group || !other.head) continue;
      const by = (other.data.zero || 0) - (this.data.zero || 0);
      other.start = this.start + by; other.end = this.end + by; other.moved(true);
    }
  }

  scroll(by) {
    const most = Math.max(0, (this.height || 0) - (this.viewHeight - AXIS) + 8);
    this.scrollY = Math.min(Math.max(this.scrollY + by, 0), most);
    this.request(); this.draw();
  }
}

function inOrder(a, b) { // lists of numbers, by the first that differs
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return a[i] - b[i];
  return 0;
}
