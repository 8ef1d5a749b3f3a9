// What the mouse and the keys do on the timeline: methods of Timeline, which timeline.js holds.

const HAND = {
  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("wheel", (event) => {
      if (!this.head) return;
      event.preventDefault();
      const inGutter = event.offsetX < this.gutter();
      if (inGutter || event.shiftKey) this.scroll(event.deltaY || event.deltaX);
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(((this.end - this.start) * event.deltaX) / this.plot());
      else this.zoom(Math.exp(Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 120) * 0.002), event.offsetX);
    }, { passive: false });
    canvas.addEventListener("mousedown", (event) => {
      if (!this.head) return;
      canvas.focus({ preventScroll: true });
      if (event.offsetY < MAP && event.offsetX >= this.gutter()) { this.down = { map: true }; this.center(event.offsetX); return; }
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
  },

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
  },

  release(event) {
    const down = this.down;
    this.down = null;
    if (!down || down.map) return;
    if (down.box && this.box && down.far) {
      const range = this.box.map((x) => Math.round(this.toNs(Math.max(x, this.gutter()))));
      this.box = null;
      if (down.zoom) { this.show(range); return; }
      const area = this.band_y;
      const inArea = (row) => this.rowY(row) < area[1] && this.rowY(row) + row.height > area[0];
      const rows = area ? this.visible().filter(inArea) : [];
      if (range[1] > range[0]) this.selectArea(range, rows.map((row) => row.label));
    } else if (!down.far && event.composedPath()[0] === this.canvas) this.click(down.x, down.y);
  },

  click(x, y) {
    if (x < this.gutter()) { this.pin(y, x); return; }
    const hit = this.at(x, y);
    this.picked = null;
    if (this.selection) this.dropArea();
    if (hit && hit.event >= 0) {
      const { rank, event, start_ns, dur_ns, index } = hit;
      this.picked = { rank, event, start_ns, dur_ns, index };
    }
    this.members = []; this.remember(0);
    this.report("picked", this.picked ? { rank: hit.rank, event: hit.event } : null);
    this.draw();
  },

  center(x) { // on the map of the whole run
    const at = ((x - this.gutter()) / this.plot()) * this.head.span_ns, span = this.end - this.start;
    this.start = at - span / 2; this.end = this.start + span; this.moved();
  },

  pin(y, x) {
    const row = this.rowAt(y);
    if (!row) return;
    if (x < 70 && this.rankHead(row)) { this.fold(row.rank); return; }
    if (this.pinned.has(row.label)) this.pinned.delete(row.label); else this.pinned.add(row.label);
    this.layout(); this.scroll(0); this.remember();
  },

  rankHead(row) { return this.rows.find((each) => each.rank === row.rank && each.pinned === row.pinned) === row; },

  onKey(event) {
    if (!this.head) return;
    const middle = this.gutter() + this.plot() / 2, span = this.end - this.start;
    const acts = {
      w: () => this.zoom(0.7, middle), s: () => this.zoom(1 / 0.7, middle),
      a: () => this.pan(-span * 0.2), d: () => this.pan(span * 0.2),
      ArrowLeft: () => this.pan(-span * 0.1), ArrowRight: () => this.pan(span * 0.1),
      ArrowUp: () => this.scroll(-40), ArrowDown: () => this.scroll(40),
      PageUp: () => this.scroll(-(this.viewHeight - AXIS) * 0.8), PageDown: () => this.scroll((this.viewHeight - AXIS) * 0.8),
      Home: () => this.scroll(-this.height), End: () => this.scroll(this.height),
      c: () => this.foldAll(),
      f: () => { this.start = 0; this.end = this.head.span_ns; this.moved(); },
      z: () => { if (this.selection) this.show(this.selection); },
      Escape: () => this.forget(),
    };
    const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); event.stopPropagation(); act(); }
  },

  foldAll() { // or unfold, where all are folded
    if (this.folded.has("all")) this.folded.clear(); else this.folded.add("all");
    this.layout(); this.resize(); this.remember();
  },

  forget() { // what was selected and picked
    this.box = this.picked = this.framed = null;
    this.dropArea();
    this.report("picked", null);
    this.draw();
  },

  rowAt(y) {
    if (y < AXIS) return null;
    const inBand = y - AXIS < this.band;
    return (this.rows || []).find((row) => row.pinned === inBand && y >= this.rowY(row) && y < this.rowY(row) + row.height) || null;
  },

  at(x, y) {
    const row = this.rowAt(y), tile = this.tile;
    if (!row || !tile || x < this.gutter()) return null;
    const place = tile.places.get(row.label);
    if (place === undefined || tile.raster) return null;
    const scale = (tile.end_ns - tile.start_ns) / tile.width, px = (this.toNs(x) - tile.start_ns) / scale;
    let best = -1;
    for (let i = tile.first[place]; i < tile.first[place + 1]; i++) {
      const slack = Math.max(0, (1.5 * (this.end - this.start)) / this.plot() / scale - tile.dur[i]);
      if (px >= tile.start[i] - slack && px <= tile.start[i] + tile.dur[i] + slack) { best = i; if (slack === 0) break; }
    }
    if (best < 0) return null;
    const { rank, rank_label, lane, kind, index } = row;
    return {
      rank, rank_label, lane, kind, index,
      event: tile.event[best], name: this.names[tile.name[best]], category: tile.category[best],
      start_ns: tile.start_ns + tile.start[best] * scale, dur_ns: tile.dur[best] * scale, coverage: tile.coverage[best],
    };
  },

  showTip(event) {
    const hit = this.at(event.offsetX, event.offsetY);
    if (!hit && event.offsetX < this.gutter()) { this.showRowTip(event); return; }
    if (!hit) {
      const raster = this.tile && this.tile.raster && this.rowAt(event.offsetY) && event.offsetX > this.gutter();
      this.tip.style.display = raster ? "block" : "none";
      if (raster) { this.tip.textContent = "zoom in for names"; this.placeTip(event); }
      return;
    }
    this.tip.textContent = hit.kind === "counters" ? heightOf(hit) : this.factsOf(hit);
    this.tip.style.display = "block";
    this.placeTip(event);
  },

  factsOf(hit) {
    const when = `${duration(hit.dur_ns)} at ${duration(hit.start_ns)}`;
    const where = [hit.rank_label, this.head.categories[hit.category], hit.lane].filter(Boolean).join(" · ");
    const share = Math.round((hit.coverage / 255) * 100);
    return `${hit.name}\n${when} · ${where}${hit.coverage < 255 ? `\nlongest of several, ${share}% busy` : ""}`;
  },

  showRowTip(event) { // a row's whole name, which may be cut, and what a click does
    const row = this.rowAt(event.offsetY);
    this.tip.style.display = row ? "block" : "none";
    if (!row) return;
    const head = event.offsetX < 70 && this.rankHead(row);
    const lane = row.lane && row.lane !== row.base ? ` (${row.lane})` : "";
    this.tip.textContent = `${row.rank_label} · ${row.base}${lane}\nclick: ${head ? "fold or unfold the rank" : "pin the row"}`;
    this.placeTip(event);
  },

  placeTip(event) {
    this.tip.style.left = `${Math.min(event.offsetX + 14, this.width - 330)}px`;
    this.tip.style.top = `${Math.min(event.offsetY + 14, this.viewHeight - 60)}px`;
  },
};
Object.assign(Timeline.prototype, HAND);
