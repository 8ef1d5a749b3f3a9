// What the mouse and the keys do on the timeline. Methods of Timeline.

const TYPING = "input, textarea, select, [contenteditable='true']";

const HAND = {
  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    canvas.addEventListener("mousedown", (event) => {
      if (!this.head) return;
      canvas.focus({ preventScroll: true });
      if (event.offsetY < MAP && event.offsetX >= this.gutter()) { this.down = { map: true }; this.center(event.offsetX); return; }
      this.down = { x: event.offsetX, y: event.offsetY, start: this.start, end: this.end, scroll: this.scrollY, far: false,
        box: event.shiftKey || event.altKey || event.offsetY < AXIS, zoom: event.altKey };
    });
    canvas.addEventListener("mousemove", (event) => this.onMove(event));
    canvas.addEventListener("mouseleave", () => { this.tip.style.display = "none"; this.cursor = undefined; });
    this.onUp = (event) => this.release(event);
    window.addEventListener("mouseup", this.onUp);
    canvas.addEventListener("dblclick", (event) => {
      const hit = this.at(event.offsetX, event.offsetY);
      if (hit && hit.event >= 0) this.fit(hit);
    });
    // The page's main timeline gets the keys wherever the focus is, before Streamlit and the palette.
    this.onKeyDown = (event) => this.onKey(event);
    this.onHistory = () => { if (this.head && window.location.pathname === this.page) { this.readAddress(); this.fillBar(); this.layout(); this.resize(); this.afterOpening(); } };
    this.onCopy = (event) => this.copyName(event);
    if (this.owns()) {
      window.addEventListener("keydown", this.onKeyDown, true); window.addEventListener("popstate", this.onHistory);
      document.addEventListener("copy", this.onCopy);
    }
    else canvas.addEventListener("keydown", this.onKeyDown);
  },

  ignore() {
    window.removeEventListener("mouseup", this.onUp);
    window.removeEventListener("keydown", this.onKeyDown, true);
    window.removeEventListener("popstate", this.onHistory);
    document.removeEventListener("copy", this.onCopy);
    this.wall?.destroy();
  },

  // Ctrl + wheel zooms and the wheel scrolls, as in Perfetto; a setting makes the wheel alone zoom.
  onWheel(event) {
    if (!this.head) return;
    const { deltaX, deltaY } = event, zooms = (event.ctrlKey || event.metaKey || wheelZooms()) && event.offsetX >= this.gutter();
    if (zooms) this.zoom(Math.exp(Math.sign(deltaY) * Math.min(Math.abs(deltaY), 120) * 0.002), event.offsetX);
    else if (event.shiftKey || Math.abs(deltaX) > Math.abs(deltaY)) this.pan(((this.end - this.start) * (deltaX || deltaY)) / this.plot());
    else {
      const canScroll = deltaY > 0 ? this.scrollY < this.mostScroll() : this.scrollY > 0;
      if (!canScroll) return; // the page scrolls
      this.scroll(deltaY);
    }
    event.preventDefault();
  },

  onMove(event) {
    if (!this.head) return;
    this.cursor = event.offsetX;
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
      if (!this.owns() || range[1] <= range[0]) { this.draw(); return; }
      const area = this.band_y;
      const inArea = (row) => row.kind !== "rank" && this.rowY(row) < area[1] && this.rowY(row) + row.height > area[0];
      this.selectArea(range, area ? this.visible().filter(inArea).map((row) => row.label) : []);
    } else if (!down.far && event.composedPath()[0] === this.canvas) this.click(down.x, down.y);
  },

  click(x, y) {
    if (x < this.gutter()) { this.pin(y, x); return; }
    if (!this.owns()) return;
    if (y < AXIS) { this.showStep(this.toNs(x)); return; }
    const hit = this.at(x, y);
    this.framed = null;
    if (this.selection) this.dropArea();
    if (!hit || hit.event < 0) { this.pick(null); return; }
    const { rank, event, start_ns, dur_ns, index } = hit;
    this.showsDock = true;
    this.pick({ rank, event, start_ns, dur_ns, index });
  },

  center(x) { // on the map of the whole run
    const at = ((x - this.gutter()) / this.plot()) * this.head.span_ns, span = this.end - this.start;
    this.start = at - span / 2; this.end = this.start + span; this.moved();
  },

  pin(y, x) {
    const row = this.rowAt(y);
    if (!row) return;
    if (this.data.fixed) return;
    if (this.isRankName(row, x)) { this.fold(row.rank); return; }
    const track = trackOf(row);
    if (row.isFirstOfTrack && (this.isStacked(row) || this.opened.has(track)) && x < INDENT + 14) {
      if (this.opened.has(track)) this.opened.delete(track); else this.opened.add(track);
    } else if (this.pinned.has(row.label)) this.pinned.delete(row.label); else this.pinned.add(row.label);
    this.relayout();
  },

  isRankName(row, x) { return row.kind === "rank" || (row.isFirst && row.inHead && !row.pinned && x < 70); },

  onKey(event) {
    if (!this.head || event.composedPath()[0].matches?.(TYPING) || document.querySelector("dialog[open]")) return;
    const middle = this.gutter() + this.plot() / 2, span = this.end - this.start;
    const acts = {
      w: () => this.zoom(0.7, middle), s: () => this.zoom(1 / 0.7, middle),
      a: () => this.pan(-span * 0.2), d: () => this.pan(span * 0.2),
      ArrowLeft: () => this.pan(-span * 0.1), ArrowRight: () => this.pan(span * 0.1),
      ArrowUp: () => this.scroll(-40), ArrowDown: () => this.scroll(40),
      PageUp: () => this.scroll(-(this.viewHeight - AXIS) * 0.8), PageDown: () => this.scroll((this.viewHeight - AXIS) * 0.8),
      Home: () => this.scroll(-this.height), End: () => this.scroll(this.height),
      c: () => this.foldAll(), "?": () => this.owns() && this.toggleHelp(),
      "/": () => this.searchField?.focus(), m: () => this.owns() && this.mark(), q: () => this.owns() && this.toggleDock(),
      ".": () => this.neighbor(1), ",": () => this.neighbor(-1), "]": () => this.picked && this.follow(1), "[": () => this.picked && this.follow(-1), Enter: () => this.hits && this.step(event.shiftKey ? -1 : 1),
      f: () => this.fitFocus(), l: () => this.owns() && this.stepLongest(),
      z: () => { if (this.selection) this.show(this.selection); },
      Escape: () => this.forget(),
    };
    const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    const isOnControl = event.key === "Enter" && event.composedPath()[0].matches?.("button, a, summary");
    if (act && !isOnControl && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); event.stopImmediatePropagation(); act(); }
  },

  fit(slice) {
    const pad = Math.max(slice.dur_ns * 0.1, 20);
    this.show([slice.start_ns - pad, slice.start_ns + slice.dur_ns + pad]);
  },

  fitFocus() { // the picked slice or the selection; if it fits already, or without one: the whole run
    const before = [this.start, this.end];
    if (this.picked) this.fit(this.picked); else if (this.selection) this.show(this.selection);
    if (this.start === before[0] && this.end === before[1]) this.show([0, this.head.span_ns]);
  },

  copyName(event) { // of the picked slice, if no text is selected
    if (!this.picked || !this.hasDock() || String(window.getSelection()) || event.composedPath()[0].matches?.(TYPING)) return;
    event.clipboardData.setData("text/plain", this.dock.querySelector(".usp-name")?.textContent || "");
    event.preventDefault();
  },

  showStep(at_ns) {
    const step = this.head.steps.find(({ start_ns, end_ns }) => start_ns <= at_ns && at_ns < end_ns);
    if (step) this.show([step.start_ns, step.end_ns]);
  },

  foldAll() {
    if (this.folded.has("all")) this.folded.clear(); else this.folded.add("all");
    this.relayout();
  },

  forget() { // the selection and the picked slice
    this.box = this.framed = null;
    if (this.owns()) { this.dropArea(); this.pick(null); }
  },

  rowAt(y) {
    if (y < AXIS) return null;
    const inBand = y - AXIS < this.band;
    return (this.rows || []).find((row) => row.pinned === inBand && y >= this.rowY(row) && y < this.rowY(row) + row.height) || null;
  },

  at(x, y) { // rows of a collapsed track are at one place: the shortest slice is on top
    const first = this.rowAt(y);
    if (!first) return null;
    const hits = this.rows.filter((row) => row.y === first.y && row.pinned === first.pinned).map((row) => this.hitOn(row, x)).filter(Boolean);
    return hits.sort((a, b) => a.dur_ns - b.dur_ns)[0] || null;
  },

  hitOn(row, x) {
    const tile = this.tile;
    if (row.kind === "rank" || !tile || x < this.gutter()) return null;
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
      if (raster) { this.tip.textContent = "Zoom in for names"; this.placeTip(event); }
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

  showRowTip(event) { // the full name of a row, and what a click does
    const row = this.rowAt(event.offsetY);
    this.tip.style.display = row && !this.data.fixed ? "block" : "none";
    if (!row) return;
    const axes = this.data.coordinates?.[row.rank], place = axes ? ` (${Object.entries(axes).map(([axis, at]) => `${axis} ${at}`).join(", ")})` : "";
    if (this.isRankName(row, event.offsetX)) this.tip.textContent = `${row.rank_label}${place}\nclick: fold or unfold the rank`;
    else {
      const lane = row.lane && row.lane !== row.base ? ` (${row.lane})` : "", rows = this.counts.get(trackOf(row));
      const arrow = this.isStacked(row) ? `\n${rows} rows of overlapping work in one; click ▸ to open` : "";
      this.tip.textContent = `${row.rank_label}${place} · ${row.base}${lane}${arrow}\nclick: ${row.pinned ? "unpin" : "pin"} the row`;
    }
    this.placeTip(event);
  },

  placeTip(event) {
    const top = this.canvas.offsetTop;
    this.tip.style.left = `${Math.max(Math.min(event.offsetX + 14, this.width - 330), 0)}px`;
    this.tip.style.top = `${top + Math.min(event.offsetY + 14, this.viewHeight - 60)}px`;
  },
};
Object.assign(Timeline.prototype, HAND);
