// The timeline of all ranks: a canvas that is panned and zoomed like a map.
//
// The server answers tiles (see timeline/tiles.py). Between tiles the last one is stretched, so that the picture follows
// the hand in the next frame; a sharp tile replaces it as soon as it arrives. Nothing here knows what a trace is: rows,
// names, categories and overlays come from the server. timeline_tiles.js decodes tiles, timeline_paint.js paints them;
// the three are one script in the browser.

const GUTTER = 180, AXIS = 48, MAP = 10, ROW = { device: 18, host: 13, exposed: 12, actions: 16, path: 12 }, GAP = 6, LABEL_PX = 36, SETTLE_MS = 12, MARGIN = 0.3;

export default function (component) {
  const { data, parentElement, setStateValue } = component;
  const root = parentElement.querySelector(".usp-timeline");
  if (root.timeline && root.timeline.source === data.source) root.timeline.update(data, setStateValue);
  else {
    if (root.timeline) root.timeline.destroy();
    root.timeline = new Timeline(root, data, setStateValue);
  }
  return () => { if (!root.isConnected && root.timeline) { root.timeline.destroy(); root.timeline = null; } };
}

class Timeline {
  constructor(root, data, report) {
    this.root = root; this.source = data.source; this.report = report; this.data = data;
    this.tile = null; this.scrollY = 0; this.hover = null; this.box = null; this.picked = null; this.members = [];
    this.pinned = new Set(data.pinned || []); this.folded = new Set(data.compact ? ["all"] : []); this.pattern = null; this.alive = true;
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
    try {
      const answer = await fetch(`/usp/timeline?${this.source}`);
      if (!answer.ok) throw new Error(await answer.text());
      this.head = await answer.json();
    } catch (error) {
      this.message = `the timeline did not load: ${error.message}; asking again …`; this.draw();
      if (this.alive) setTimeout(() => this.load(), 2000);
      return;
    }
    this.message = null;
    const asked = this.data.jump || this.data.range;
    this.start = asked ? asked[0] : 0;
    this.end = asked ? asked[1] : this.head.span_ns;
    this.names = this.head.names;
    this.lines = Object.entries(this.head.rows).flatMap(([rank, rows]) => rows.map(([track, kind, depth, lane], index) => (
      { rank: Number(rank), index, track: depth ? "" : track, base: track, depth, lane, kind, label: `${rank}.${index}`, rank_label: (this.head.labels || {})[rank] || `rank ${rank}` })));
    this.update(this.data, this.report);
  }

  update(data, report) {
    const jumps = data.jump && JSON.stringify(data.jump) !== JSON.stringify(this.data.jump);
    this.data = data; this.report = report;
    if (!this.head) return;
    if (jumps) { this.start = data.jump[0]; this.end = data.jump[1]; this.remember(); }
    const focuses = data.focus && JSON.stringify(data.focus) !== this.focused;
    this.setMatched(data.matched || []);
    this.members = data.members || [];
    this.layout(); this.resize();
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
    const key = (row) => [this.pinned.has(row.label) ? 0 : 1, order.get(row.rank) ?? row.rank, row.kind === "device" ? 1 : row.kind === "host" ? 2 : 0];
    rows.sort((a, b) => { const x = key(a), y = key(b); return x[0] - y[0] || x[1] - y[1] || x[2] - y[2] || a.index - b.index; });
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
    this.layout(); this.resize();
  }

  resize() {
    const width = Math.max(this.root.clientWidth, 320), room = this.data.tall ? window.innerHeight - 290 : 0;
    const height = Math.min(Math.max(this.data.height || 560, room), Math.max((this.height || 0) + AXIS + 12, 120)), ratio = window.devicePixelRatio || 1;
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
    this.alive = false;
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

  plot() { return this.width - GUTTER; }
  toX(ns) { return GUTTER + ((ns - this.start) / (this.end - this.start)) * this.plot(); }
  toNs(x) { return this.start + ((x - GUTTER) / this.plot()) * (this.end - this.start); }

  request(delay = SETTLE_MS) {
    if (!this.head) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetchTile(), delay);
  }

  async fetchTile() {
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
    const share = (x - GUTTER) / this.plot();
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
    this.request(); this.draw(); this.remember();
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

  remember() { if (this.data.group || this.data.fixed) return; // the range lives in the address, so that a link shows what its sender saw
    clearTimeout(this.addressTimer);
    this.addressTimer = setTimeout(() => {
      const url = new URL(window.location.href);
      url.searchParams.set("range", `${Math.round(this.start)}-${Math.round(this.end)}`);
      window.history.replaceState(window.history.state, "", url);
    }, 250);
  }

  // --- the hand --------------------------------------------------------------------------------------------------

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("wheel", (event) => {
      if (!this.head) return;
      event.preventDefault();
      const inGutter = event.offsetX < GUTTER;
      if (inGutter || event.shiftKey) this.scroll(event.deltaY || event.deltaX);
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(((this.end - this.start) * event.deltaX) / this.plot());
      else this.zoom(Math.exp(Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 120) * 0.002), event.offsetX);
    }, { passive: false });
    canvas.addEventListener("mousedown", (event) => {
      if (!this.head) return;
      canvas.focus({ preventScroll: true });
      if (event.offsetY < MAP && event.offsetX >= GUTTER) { this.down = { map: true }; this.center(event.offsetX); return; }
      this.down = { x: event.offsetX, y: event.offsetY, start: this.start, end: this.end, scroll: this.scrollY, far: false,
        box: event.shiftKey || event.altKey || event.offsetY < AXIS, zoom: event.altKey };
    });
    canvas.addEventListener("mousemove", (event) => this.onMove(event));
    canvas.addEventListener("mouseleave", () => { this.tip.style.display = "none"; });
    this.onUp = (event) => this.release(event);
    window.addEventListener("mouseup", this.onUp);
    canvas.addEventListener("dblclick", (event) => {
      const hit = this.at(event.offsetX, event.offsetY);
      if (!hit || hit.event < 0) return;
      const pad = Math.max(hit.dur_ns * 0.1, 20);
      this.start = hit.start_ns - pad; this.end = hit.start_ns + hit.dur_ns + pad; this.moved();
    });
    canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  onMove(event) {
    if (!this.head) return;
    if (!this.down) { this.showTip(event); return; }
    if (this.down.map) { this.center(event.offsetX); return; }
    const dx = event.offsetX - this.down.x, dy = event.offsetY - this.down.y;
    if (Math.abs(dx) + Math.abs(dy) > 3) this.down.far = true;
    if (!this.down.far) return;
    if (this.down.box) {
      this.box = [this.down.x, event.offsetX].sort((a, b) => a - b);
      this.band_y = this.down.zoom || this.down.y < AXIS ? null : [this.down.y, event.offsetY].sort((a, b) => a - b);
      this.draw(); return;
    }
    const span = this.down.end - this.down.start;
    this.start = this.down.start - (dx / this.plot()) * span; this.end = this.start + span;
    this.scrollY = this.down.scroll; this.scroll(-dy); this.moved();
  }

  release(event) {
    const down = this.down;
    this.down = null;
    if (!down || down.map) return;
    if (down.box && this.box && down.far) {
      const range = this.box.map((x) => Math.round(this.toNs(Math.max(x, GUTTER))));
      this.box = null;
      if (down.zoom) { this.show(range); return; }
      const area = this.band_y, rows = area ? this.visible().filter((row) => this.rowY(row) < area[1] && this.rowY(row) + row.height > area[0]) : [];
      this.area = rows.length ? new Set(rows.map((row) => row.label)) : null;
      this.report("selected_range", rows.length ? [...range, rows.map((row) => row.label).join("-")] : range);
      this.selection = range; this.draw();
    } else if (!down.far && event.composedPath()[0] === this.canvas) this.click(down.x, down.y);
  }

  click(x, y) {
    if (x < GUTTER) { this.pin(y, x); return; }
    const hit = this.at(x, y);
    this.picked = hit && hit.event >= 0 ? { rank: hit.rank, event: hit.event, start_ns: hit.start_ns, dur_ns: hit.dur_ns, index: hit.index } : null;
    this.members = [];
    this.report("picked", this.picked ? { rank: hit.rank, event: hit.event } : null);
    this.draw();
  }

  center(x) { // on the map of the whole run
    const at = ((x - GUTTER) / this.plot()) * this.head.span_ns, span = this.end - this.start;
    this.start = at - span / 2; this.end = this.start + span; this.moved();
  }

  pin(y, x) {
    const row = this.rowAt(y);
    if (!row) return;
    if (x < 70 && this.rankHead(row)) { this.fold(row.rank); return; }
    if (this.pinned.has(row.label)) this.pinned.delete(row.label); else this.pinned.add(row.label);
    this.layout(); this.scroll(0);
  }

  rankHead(row) { return this.rows.find((each) => each.rank === row.rank && each.pinned === row.pinned) === row; }

  onKey(event) {
    if (!this.head) return;
    const middle = GUTTER + this.plot() / 2, span = this.end - this.start;
    const acts = {
      w: () => this.zoom(0.7, middle), s: () => this.zoom(1 / 0.7, middle), a: () => this.pan(-span * 0.2), d: () => this.pan(span * 0.2),
      ArrowLeft: () => this.pan(-span * 0.1), ArrowRight: () => this.pan(span * 0.1), ArrowUp: () => this.scroll(-40), ArrowDown: () => this.scroll(40),
      PageUp: () => this.scroll(-(this.viewHeight - AXIS) * 0.8), PageDown: () => this.scroll((this.viewHeight - AXIS) * 0.8),
      Home: () => this.scroll(-this.height), End: () => this.scroll(this.height),
      c: () => { if (this.folded.has("all")) this.folded.clear(); else this.folded.add("all"); this.layout(); this.resize(); },
      "/": () => { const box = document.querySelector("input[aria-label='Search']"); if (box) box.focus(); },
      f: () => { this.start = 0; this.end = this.head.span_ns; this.moved(); },
      z: () => { if (this.selection) this.show(this.selection); },
      Escape: () => { this.box = this.selection = this.picked = this.area = this.framed = null; this.report("selected_range", null); this.draw(); },
    };
    const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); event.stopPropagation(); act(); }
  }

  rowAt(y) {
    if (y < AXIS) return null;
    const inBand = y - AXIS < this.band;
    return (this.rows || []).find((row) => row.pinned === inBand && y >= this.rowY(row) && y < this.rowY(row) + row.height) || null;
  }

  at(x, y) {
    const row = this.rowAt(y), tile = this.tile;
    if (!row || !tile || x < GUTTER) return null;
    const place = tile.places.get(row.label);
    if (place === undefined || tile.raster) return null;
    const scale = (tile.end_ns - tile.start_ns) / tile.width, px = (this.toNs(x) - tile.start_ns) / scale;
    let best = -1;
    for (let i = tile.first[place]; i < tile.first[place + 1]; i++) {
      const slack = Math.max(0, (1.5 * (this.end - this.start)) / this.plot() / scale - tile.dur[i]);
      if (px >= tile.start[i] - slack && px <= tile.start[i] + tile.dur[i] + slack) { best = i; if (slack === 0) break; }
    }
    if (best < 0) return null;
    return { rank: row.rank, rank_label: row.rank_label, lane: row.lane, index: row.index, event: tile.event[best], name: this.names[tile.name[best]], category: tile.category[best],
      start_ns: tile.start_ns + tile.start[best] * scale, dur_ns: tile.dur[best] * scale, coverage: tile.coverage[best] };
  }

  showTip(event) {
    const hit = this.at(event.offsetX, event.offsetY);
    if (!hit && event.offsetX < GUTTER) { this.showRowTip(event); return; }
    if (!hit) {
      const raster = this.tile && this.tile.raster && this.rowAt(event.offsetY) && event.offsetX > GUTTER;
      this.tip.style.display = raster ? "block" : "none";
      if (raster) { this.tip.textContent = "zoom in for names"; this.placeTip(event); }
      return;
    }
    this.tip.textContent = `${hit.name}\n${duration(hit.dur_ns)} at ${duration(hit.start_ns)} · ${hit.rank_label} · ${this.head.categories[hit.category]}${hit.lane ? ` · ${hit.lane}` : ""}` +
      (hit.coverage < 255 ? `\nlongest of several, ${Math.round((hit.coverage / 255) * 100)} % busy` : "");
    this.tip.style.display = "block";
    this.placeTip(event);
  }

  showRowTip(event) { // a row's whole name, which may be cut, and what a click does
    const row = this.rowAt(event.offsetY);
    this.tip.style.display = row ? "block" : "none";
    if (!row) return;
    const head = event.offsetX < 70 && this.rankHead(row);
    this.tip.textContent = `${row.rank_label} · ${row.base}${row.lane && row.lane !== row.base ? ` (${row.lane})` : ""}\nclick: ${head ? "fold or unfold the rank" : "pin the row"}`;
    this.placeTip(event);
  }

  placeTip(event) {
    this.tip.style.left = `${Math.min(event.offsetX + 14, this.width - 330)}px`;
    this.tip.style.top = `${Math.min(event.offsetY + 14, this.viewHeight - 60)}px`;
  }
}
