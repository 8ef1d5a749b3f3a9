// Interactive timeline of all ranks: a canvas, a tool bar above it and a dock below it, with their own state.
//
// Rows, names, categories and tiles come from a source: the dashboard's server (source_server.js) or the report's own
// file (source_file.js). Between tiles the last one is stretched, so the picture follows the hand in the next frame; a
// sharp tile replaces it when it arrives. Nothing that happens here asks the page for anything.
//   tiles.js    decode tiles, format times and names       bar.js      search, row filter, row kinds, ranks, help
//   paint.js    paint the canvas                           dock.js     details of a slice, totals of a selection
//   hand.js     mouse and keys                             address.js  the link
//   play.js     morph from recorded to predicted (dashboard only)
// All files form one script in the browser.

// Pixels: row names at the left, the axis above, the strip of the whole run over it, rows by kind, space between ranks.
const GUTTER = 164, AXIS = 48, MAP = 10, GAP = 6, INDENT = 16, LEAST = 240;
const NARROW = 480, SLIM_GUTTER = 84; // a narrower canvas names ranks only
const ROW = { device: 18, host: 13, exposed: 12, contended: 12, actions: 16, path: 12, counters: 26, rank: 16 };
const LABEL_PX = 36; // a narrower slice has no name
const SETTLE_MS = 12; // after the last turn of the wheel, before a tile is requested
const MARGIN = 0.3; // a tile extends this far beyond the view on each side, as a share of it
const BELOW = { host: 2, counters: 3, device: 1 }; // rows that are laid over a rank come first

class Timeline {
  constructor(root, data) {
    this.root = root; this.data = data; this.source = data.source; this.from = data.file ? new FileSource(data.file) : new ServerSource(data.source);
    this.page = window.location.pathname;
    this.alive = true; this.tile = null; this.scrollY = 0; this.box = null; this.dimmed = null; this.hits = null;
    this.picked = null; this.members = []; this.flows = []; this.around = {}; this.notes = []; this.selection = null; this.area = null;
    this.pinned = new Set(); this.folded = new Set(data.compact ? ["all"] : []); this.opened = new Set();
    this.kinds = new Set(data.kinds || ["exposed"]); this.only = null; this.by = ""; this.find = ""; this.filter = ""; this.showsDock = true;
    root.replaceChildren();
    if (this.owns()) this.buildBar();
    this.canvas = root.appendChild(document.createElement("canvas"));
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", "Timeline of all ranks");
    if (this.owns()) this.buildDock();
    this.tip = root.appendChild(element("div", "usp-tip"));
    this.context = this.canvas.getContext("2d");
    this.strip = document.createElement("canvas");
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(root);
    (window.uspTimelines ||= new Set()).add(this);
    this.listen();
    this.loaded = this.load();
  }

  owns() { return !this.data.group && !this.data.fixed && !this.data.play; } // the page's main timeline, with bar, dock and link

  async load() {
    if (this.data.play) { await this.loadPlay(); return; }
    try {
      this.head = await this.from.head();
    } catch (error) {
      this.message = `The timeline did not load: ${error.message}. Trying again …`; this.draw();
      if (this.alive) setTimeout(() => this.alive && this.load(), 2000);
      return;
    }
    if (!this.alive) return;
    const shown = this.data.jump || this.data.range;
    this.begin(shown ? shown[0] : 0, shown ? shown[1] : this.head.span_ns);
  }

  begin(start, end) { // the head has arrived: lay out its rows and show a range
    this.message = null; this.start = start; this.end = end;
    this.names = this.head.names;
    const labels = this.head.labels || {};
    this.lines = Object.entries(this.head.rows).flatMap(([rank, rows]) => rows.map(([track, kind, depth, lane], index) => ({
      rank: Number(rank), index, base: track, depth, lane, kind, label: `${rank}.${index}`, rank_label: labels[rank] || `rank ${rank}`,
    })));
    this.counts = new Map(); // track -> number of its rows
    for (const line of this.lines) this.counts.set(trackOf(line), (this.counts.get(trackOf(line)) || 0) + 1);
    if (this.owns()) this.readAddress();
    this.fillBar?.();
    this.update(this.data);
    if (this.owns()) this.afterOpening();
  }

  update(data) {
    const before = this.data, changed = (name) => data[name] && JSON.stringify(data[name]) !== JSON.stringify(before[name]);
    const jump = changed("jump") ? data.jump : null, other = JSON.stringify(data.ranks) !== JSON.stringify(before.ranks);
    this.data = data;
    if (!this.head) return;
    if (jump) [this.start, this.end] = jump;
    if (other) this.only = null; // another selection in the sidebar
    if (changed("at")) this.show(data.at);
    if (!this.owns()) { this.kinds = new Set(data.kinds || []); this.picked = data.picked || null; this.members = data.members || []; }
    this.layout(); this.resize(); this.tellView();
  }

  ranks() { // the ranks shown, in order
    const all = Object.keys(this.head.rows).map(Number), there = new Set(all);
    const shown = (this.only || this.data.ranks || all).filter((rank) => there.has(rank));
    const at = (rank) => (this.data.coordinates || {})[rank]?.[this.by] ?? -1;
    return this.by ? [...shown].sort((a, b) => at(a) - at(b) || a - b) : shown;
  }

  labelOf(row) {
    if (this.data.labels?.[row.rank]) return this.data.labels[row.rank];
    const at = this.data.coordinates?.[row.rank];
    return this.by && at ? `${this.by} ${at[this.by]} · ${row.rank_label}` : row.rank_label;
  }

  reveal(rank, index) { // scroll until a row is in view and frame it; without a row, the first of the rank
    if (this.isFolded({ rank, index })) { this.folded.delete("all"); this.folded.delete(rank); this.layout(); }
    const row = this.rows.find((each) => each.rank === rank && (index === undefined || each.index === index));
    if (!row || row.pinned) return;
    const room = this.viewHeight - AXIS - (this.band || 0), y = row.y - (this.band || 0);
    const last = this.rows.findLast((each) => each.rank === rank && !each.pinned), end = last.y + last.height - (this.band || 0);
    const isInView = y >= this.scrollY && end <= this.scrollY + room;
    if (index === undefined) { if (!isInView) this.scroll(y - GAP - this.scrollY); }
    else if (y < this.scrollY || y + row.height > this.scrollY + room) this.scroll(y - room / 3 - this.scrollY);
    this.framed = index === undefined ? null : row.label;
    this.draw();
  }

  layout() {
    const order = new Map(this.ranks().map((rank, i) => [rank, i])), shown = new Set(["device", ...this.kinds]), wanted = this.filter.toLowerCase();
    const fits = (row) => !wanted || `${this.labelOf(row)} ${row.base} ${row.lane}`.toLowerCase().includes(wanted);
    const rows = this.lines.filter((row) => order.has(row.rank) && shown.has(row.kind) && !this.isFolded(row) && fits(row));
    const key = (row) => [this.pinned.has(row.label) ? 0 : 1, order.get(row.rank), BELOW[row.kind] || 0, row.index];
    rows.sort((a, b) => inOrder(key(a), key(b)));
    let y = GAP, last = null;
    this.band = 0; // pinned rows stay in a band at the top while the others scroll below it
    this.rows = [];
    for (const row of rows) {
      const pinned = this.pinned.has(row.label), isFirst = !last || last.rank !== row.rank || last.pinned !== pinned;
      const isFirstOfTrack = isFirst || trackOf(last) !== trackOf(row), inHead = pinned || this.data.fixed || this.isFoldedRank(row.rank);
      if (isFirst) {
        if (last) y += GAP;
        if (!inHead && this.hasTracks(row.rank)) {
          this.rows.push({ kind: "rank", rank: row.rank, index: -1, label: `head ${row.rank}`, rank_label: this.labelOf(row), pinned, y, height: ROW.rank });
          y += ROW.rank;
        }
      }
      const stacked = !isFirstOfTrack && this.isStacked(row); // a collapsed track draws all its rows in one
      const placed = { ...row, rank_label: this.labelOf(row), pinned, isFirst, isFirstOfTrack, inHead, y: stacked ? last.y : y, height: ROW[row.kind] };
      if (!stacked) y += placed.height;
      if (pinned) this.band = y + GAP / 2;
      this.rows.push(placed); last = placed;
    }
    this.height = y;
  }

  hasTracks(rank) { return this.head.rows[rank].some(([track]) => track); }

  // Asynchronous work (gloo, interleaved sends) needs many rows per track: it is collapsed until its name is clicked.
  isStacked(row) { return row.kind === "device" && this.counts.get(trackOf(row)) > 2 && !this.opened.has(trackOf(row)) && !this.data.fixed; }

  isFoldedRank(rank) { return this.folded.has("all") || this.folded.has(rank); }

  // A folded rank keeps its exposed communication and its compute.
  isFolded(row) {
    if (!this.isFoldedRank(row.rank)) return false;
    return !(row.kind === "exposed" && !row.depth) && !(row.kind === "device" && row.base === "compute" && !row.depth);
  }

  relayout() { this.layout(); this.resize(); this.remember(); }

  fold(rank) {
    if (this.folded.has(rank)) this.folded.delete(rank); else this.folded.add(rank);
    this.relayout();
  }

  resize() {
    const width = Math.max(this.root.clientWidth, 320), ratio = window.devicePixelRatio || 1;
    const scrolled = document.querySelector("[data-testid='stMain']")?.scrollTop || 0;
    const around = this.owns() ? (this.bar?.offsetHeight || 0) + this.dockHeight() + 12 : 0;
    const top = this.root.getBoundingClientRect().top + (this.data.file ? 0 : scrolled);
    const room = this.data.tall ? window.innerHeight - (this.data.file ? 0 : top) - around : 0;
    const ofRows = Math.max((this.height || 0) + AXIS + 12, 120);
    const height = Math.min(Math.max(Math.min(LEAST, this.data.height || LEAST), this.data.tall ? room : this.data.height || 560), ofRows);
    const same = width === this.width && height === this.viewHeight && ratio === this.ratio;
    this.width = width; this.viewHeight = height; this.ratio = ratio;
    if (!same) {
      this.canvas.style.width = `${width}px`; this.canvas.style.height = `${height}px`;
      this.canvas.width = width * ratio; this.canvas.height = height * ratio;
      this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
      this.paint(); // a resized canvas is blank: it is painted before the next frame
    }
    this.scroll(0); this.request(0);
  }

  destroy() {
    this.alive = false; cancelAnimationFrame(this.playing); cancelAnimationFrame(this.frame); clearTimeout(this.timer); clearTimeout(this.addressTimer);
    window.uspTimelines.delete(this);
    this.observer.disconnect(); this.ignore();
    this.abort?.abort();
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
    const rows = this.visible().filter((row) => row.kind !== "rank");
    if (!rows.length || !this.alive) { this.draw(); return; }
    const margin = (this.end - this.start) * MARGIN;
    const start = Math.floor(this.start - margin), end = Math.ceil(this.end + margin);
    const width = Math.round(this.plot() * (1 + 2 * MARGIN));
    const wanted = [start, end, width, rows.map((row) => row.label).join("-")].join(" ");
    if (wanted === this.asked) return;
    this.asked = wanted;
    this.abort?.abort();
    this.abort = new AbortController();
    try {
      const tile = await this.from.tile(rows, start, end, width, this.abort.signal);
      if (wanted !== this.asked) return;
      this.tile = tile; this.message = null; this.away = 0;
    } catch (error) {
      if (error.name === "AbortError") return;
      this.asked = null; // the picture stays, and the tile is requested again, less and less often
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

  // Bring a slice into view; the zoom stays, unless the slice would be narrower than a pixel.
  goTo(place) {
    const span = this.end - this.start, end = place.start_ns + place.dur_ns;
    if (place.start_ns < this.start || end > this.end) {
      const middle = place.start_ns + Math.min(place.dur_ns, span * 0.8) / 2;
      this.start = middle - span / 2; this.end = this.start + span; this.moved();
    }
    const line = this.lines.find((each) => each.rank === place.rank && each.index === place.row);
    if (line && !this.rows.some((row) => row.label === line.label)) this.makeVisible(line);
    this.reveal(place.rank, place.row);
  }

  makeVisible(line) { // a hit or a link may lead to a row that is not shown
    if (line.kind !== "device") this.kinds.add(line.kind);
    if (!this.ranks().includes(line.rank)) this.only = [...this.ranks(), line.rank].sort((a, b) => a - b);
    this.filter = ""; this.folded.delete("all"); this.folded.delete(line.rank);
    this.fillBar?.(); this.relayout();
  }

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

  mostScroll() { return Math.max(0, (this.height || 0) - (this.viewHeight - AXIS) + 8); }

  scroll(by) {
    this.scrollY = Math.min(Math.max(this.scrollY + by, 0), this.mostScroll());
    this.request(); this.draw();
  }
}

// Lanes without a stream of the device (gloo's sends and receives) are numbered parts of one track: "pp recv 2".
const baseOf = (row) => (row.kind === "device" && !/stream/.test(row.lane) ? row.base.replace(/ \d+$/, "") : row.base);
const trackOf = (row) => `${row.rank} ${row.kind} ${baseOf(row)} ${/stream/.test(row.lane) || row.kind !== "device" ? row.lane : ""}`;

function inOrder(a, b) { // compare lists of numbers
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return a[i] - b[i];
  return 0;
}

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
