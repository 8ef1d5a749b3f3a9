// Painting of the timeline. Methods of Timeline.

const PAINTING = {
  draw() {
    if (!this.alive) return;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paint());
  },

  paint() {
    const c = this.context, style = getComputedStyle(this.root);
    const ink = style.getPropertyValue("--st-text-color") || "#222", paper = style.getPropertyValue("--st-background-color") || "#fff";
    c.fillStyle = paper; c.fillRect(0, 0, this.width, this.viewHeight);
    c.font = "11px 'DejaVu Sans', 'Source Sans', sans-serif"; c.textBaseline = "middle";
    if (this.message) { c.fillStyle = ink; c.fillText(this.message, 12, 60); return; }
    if (!this.head) { c.fillStyle = ink; c.fillText("loading …", 12, 60); return; }
    const rows = this.visible();
    for (const pinned of [false, true]) {
      const part = rows.filter((row) => row.pinned === pinned), top = pinned ? AXIS : AXIS + (this.band || 0);
      if (pinned && !part.length) continue;
      const height = pinned ? this.band : this.viewHeight - top;
      c.save(); c.beginPath(); c.rect(0, top, this.width, height + (pinned ? GAP / 2 : 0)); c.clip();
      c.fillStyle = paper; c.fillRect(0, top, this.width, height);
      c.save(); c.beginPath(); c.rect(this.gutter(), top, this.plot(), height); c.clip();
      this.paintOverlays(c, ink);
      if (this.tile) { if (this.tile.raster) this.paintRaster(c, part); else this.paintSlices(c, part); }
      this.paintMembers(c, part, ink);
      this.paintTops(c, part, ink, paper);
      c.restore();
      this.paintGutter(c, part, ink);
      if (pinned) { c.globalAlpha = 0.4; c.fillStyle = ink; c.fillRect(0, top + height - 1, this.width, 1); c.globalAlpha = 1; }
      c.restore();
    }
    if (this.filter && !this.rows.length) { c.fillStyle = ink; c.fillText("no row matches the filter", this.gutter() + 8, AXIS + 16); }
    this.paintArrows(c, ink); this.paintScrollBar(c, ink);
    this.paintAxis(c, ink, paper); this.paintEnds?.(c, ink); this.paintMap(c, ink); this.paintBox(c, ink);
    if (this.away) {
      c.fillStyle = paper; c.fillRect(0, MAP, this.gutter() - 6, 18);
      c.fillStyle = ink; c.fillText("server gone, retrying …", 6, MAP + 8);
    }
    this.root.dataset.painted = String(performance.now()); this.root.dataset.sharp = String(this.isSharp());
  },

  isSharp() { // the tile covers what is in view, and was made for this zoom
    const { tile } = this;
    if (this.rows && !this.rows.length) return true; // nothing to fetch
    if (!tile || this.data.play) return Boolean(tile);
    const zoom = (tile.end_ns - tile.start_ns) / (this.end - this.start);
    return tile.start_ns <= this.start && tile.end_ns >= this.end && Math.abs(zoom - (1 + 2 * MARGIN)) <= 0.02;
  },

  rowY(row) { return AXIS + row.y - (row.pinned ? 0 : this.scrollY); },

  paintSlices(c, rows) {
    const tile = this.tile, colors = this.data.colors, span = (tile.end_ns - tile.start_ns) / tile.width;
    const scale = (span * this.plot()) / (this.end - this.start), left = this.toX(tile.start_ns);
    const dim = this.dimmed, gutter = this.gutter();
    for (const row of rows) {
      const place = tile.places.get(row.label);
      if (place === undefined) continue;
      const inset = row.kind === "path" ? 3 : 0, stacked = this.isStacked(row), y = this.rowY(row) + inset, h = row.height - 1 - 2 * inset;
      for (let i = tile.first[place]; i < tile.first[place + 1]; i++) {
        const x = left + tile.start[i] * scale, w = Math.max(tile.dur[i] * scale, 0.7);
        if (x + w < gutter || x > this.width) continue;
        if (row.kind === "counters") { this.paintHeight(c, row, x, w, tile.coverage[i], tile.category[i]); continue; }
        const faint = dim && !dim[tile.name[i]];
        c.globalAlpha = (faint ? 0.18 : 1) * (0.35 + (0.65 * tile.coverage[i]) / 255);
        c.fillStyle = colors[tile.category[i]];
        c.fillRect(x, y, w > 3 ? w - 0.5 : w, h);
        if (stacked || faint || w <= LABEL_PX || h <= 9) continue; // names of slices that cover each other cannot be read
        const from = Math.max(x, gutter), room = Math.min(x + w, this.width) - from;
        this.label(c, this.names[tile.name[i]], from, y + h / 2 + 0.5, room, tile.category[i], row.kind);
      }
    }
    c.globalAlpha = 1;
  },

  // A counter stands as high in its row as its share of the row's top.
  paintHeight(c, row, x, width, share, category) {
    const height = Math.max(((row.height - 3) * share) / 255, 1);
    c.globalAlpha = 1; c.fillStyle = this.data.colors[category];
    c.fillRect(x, this.rowY(row) + row.height - 1 - height, width + 0.4, height); // adjacent spans touch, without a seam
  },

  paintTops(c, rows, ink, paper) { // the value at the top of a counter's row
    for (const row of rows) {
      if (row.kind !== "counters") continue;
      const y = this.rowY(row) + 7, width = c.measureText(row.lane).width;
      c.globalAlpha = 0.7; c.fillStyle = paper; c.fillRect(this.gutter(), y - 6, width + 6, 12);
      c.globalAlpha = 1; c.fillStyle = ink; c.fillText(row.lane, this.gutter() + 3, y);
    }
  },

  label(c, text, x, y, room, category, kind) {
    const short = kind === "device" ? plainName(text) : text.replace(/^exposed /, "");
    const width = c.measureText(short).width, letters = Math.floor((short.length * (room - 6)) / width);
    if (letters < short.length && (short.length < 10 || letters < 5)) return; // "rank…" says nothing
    c.globalAlpha = 1; c.fillStyle = this.data.inks[category];
    c.fillText(letters < short.length ? `${short.slice(0, letters - 2)}…` : short, x + 3, y);
  },

  paintRaster(c, rows) {
    const tile = this.tile;
    if (!tile.image) tile.image = rasterImage(tile, this.data.colors);
    this.strip.width = tile.width; this.strip.height = tile.rows;
    this.strip.getContext("2d").putImageData(tile.image, 0, 0);
    c.imageSmoothingEnabled = false;
    const x0 = this.toX(tile.start_ns), x1 = this.toX(tile.end_ns);
    for (const row of rows) {
      const place = tile.places.get(row.label);
      if (place === undefined) continue;
      if (row.kind === "counters") this.paintHeights(c, row, place * tile.width, x0, (x1 - x0) / tile.width);
      else c.drawImage(this.strip, 0, place, tile.width, 1, x0, this.rowY(row), x1 - x0, row.height - 1);
    }
  },

  paintHeights(c, row, first, x0, pixel) { // a counter's cells of the raster, `first` is that of its left end
    const { category, coverage } = this.tile.raster;
    for (let i = 0, cell = first; i < this.tile.width; i++, cell++) {
      if (category[cell]) this.paintHeight(c, row, x0 + i * pixel, pixel + 0.5, coverage[cell], category[cell] - 1);
    }
  },

  stepBands() { // steps with the end of their band: ranks of a pipeline start the next step before the others end this one
    const { steps } = this.head;
    return steps.map((step, i) => [step, i + 1 < steps.length ? Math.min(step.end_ns, steps[i + 1].start_ns) : step.end_ns]);
  },

  paintOverlays(c, ink) {
    for (const [step, end_ns] of this.stepBands()) {
      const x = this.toX(step.start_ns), w = this.toX(end_ns) - x;
      if (step.number % 2) { c.globalAlpha = 0.05; c.fillStyle = ink; c.fillRect(x, AXIS, w, this.viewHeight); }
    }
    c.globalAlpha = 1;
    const range = this.selection;
    if (!range) return;
    c.globalAlpha = 0.12; c.fillStyle = ink;
    const x = this.toX(range[0]), w = this.toX(range[1]) - x;
    if (!this.area) c.fillRect(x, AXIS, w, this.viewHeight);
    else for (const row of this.visible()) if (this.area.has(row.label)) c.fillRect(x, this.rowY(row), w, row.height);
    c.globalAlpha = 1;
  },

  paintMembers(c, rows, ink) {
    c.strokeStyle = ink; c.lineWidth = 2;
    const mark = (rank, index, start, dur) => {
      const row = rows.find((r) => r.rank === rank && r.index === index);
      if (!row) return;
      const x = this.toX(start), w = Math.max((dur / (this.end - this.start)) * this.plot(), 3);
      c.strokeRect(x - 1, this.rowY(row), w + 2, row.height - 1);
    };
    if (this.picked) mark(this.picked.rank, this.picked.index, this.picked.start_ns, this.picked.dur_ns);
    for (const m of this.members) mark(m.rank, m.row, m.start_ns, m.dur_ns);
    const framed = this.framed && rows.find((row) => row.label === this.framed);
    if (framed) { c.globalAlpha = 0.5; c.strokeRect(this.gutter() + 1, this.rowY(framed) - 1, this.plot() - 2, framed.height + 1); c.globalAlpha = 1; }
  },

  scrollThumb() { // top and height of the mark that shows which part of all rows is in view; null if all are
    const most = this.mostScroll(), track = this.viewHeight - AXIS - (this.band || 0);
    if (most <= 0 || track <= 0) return null;
    const height = Math.max((track * track) / (track + most), 24);
    return [AXIS + (this.band || 0) + (this.scrollY / most) * (track - height), height];
  },

  paintScrollBar(c, ink) {
    const thumb = this.scrollThumb();
    if (!thumb) return;
    c.globalAlpha = 0.35; c.fillStyle = ink; c.fillRect(this.width - 5, thumb[0], 4, thumb[1]); c.globalAlpha = 1;
  },

  // From the picked slice to its peers, and from a launch to the work that it started.
  paintArrows(c, ink) {
    if (!this.picked) return;
    const place = (rank, index, ns) => {
      const row = this.rows.find((each) => each.rank === rank && each.index === index);
      return row ? [this.toX(ns), this.rowY(row) + row.height / 2] : null;
    };
    const picked = this.picked, middle = picked.start_ns + picked.dur_ns / 2;
    c.save(); c.beginPath(); c.rect(this.gutter(), AXIS, this.plot(), this.viewHeight - AXIS); c.clip();
    c.strokeStyle = c.fillStyle = ink; c.lineWidth = 1.2; c.globalAlpha = 0.75;
    for (const m of this.members) {
      if (m.rank === picked.rank && m.row === picked.index) continue;
      arrow(c, place(picked.rank, picked.index, middle), place(m.rank, m.row, m.start_ns + m.dur_ns / 2));
    }
    for (const [from, to] of this.flows) arrow(c, place(from.rank, from.row, from.start_ns), place(to.rank, to.row, to.start_ns));
    c.restore();
  },

  paintGutter(c, rows, ink) {
    c.save(); c.beginPath(); c.rect(0, AXIS, this.gutter() - 6, this.viewHeight); c.clip();
    c.fillStyle = ink;
    // One column: the rank, and its rows below it, indented. A folded, pinned or lone row has its rank in its own line.
    for (const row of rows) {
      const y = this.rowY(row) + row.height / 2, isRank = row.kind === "rank" || (row.inHead && row.isFirst);
      c.globalAlpha = 1;
      let x = 6;
      if (isRank) {
        c.font = "bold 11px 'DejaVu Sans', sans-serif";
        const sign = row.pinned ? "● " : this.data.fixed ? "" : this.isFoldedRank(row.rank) ? "▸ " : "▾ ";
        const text = clipped(c, `${sign}${row.rank_label}`, this.gutter() - 14);
        c.fillText(text, x, y); x += c.measureText(text).width + 8;
        c.font = "11px 'DejaVu Sans', sans-serif";
      }
      if (row.kind === "rank" || !row.isFirstOfTrack || !row.base || this.isNarrow()) continue;
      const isOpen = this.opened.has(trackOf(row)), sign = this.isStacked(row) ? "▸ " : isOpen ? "▾ " : "";
      const room = this.gutter() - Math.max(x, INDENT) - 8;
      c.globalAlpha = 0.75;
      const full = `${sign}${rowName(row)}`, name = c.measureText(full).width <= room ? full : `${sign}${baseOf(row)}`;
      if (room > 30) c.fillText(clipped(c, name, room), Math.max(x, sign ? INDENT - 10 : INDENT), y);
    }
    c.restore(); c.globalAlpha = 1;
  },

  paintAxis(c, ink, paper) {
    c.fillStyle = paper; c.fillRect(0, 0, this.width, AXIS); c.fillStyle = ink; c.globalAlpha = 0.8;
    const span = this.end - this.start, step = nice(span / (this.plot() / 110));
    const zero = this.data.zero || 0;
    for (let t = Math.ceil((this.start - zero) / step) * step; t < this.end - zero; t += step) {
      const x = this.toX(t + zero);
      if (x < this.gutter()) continue;
      c.globalAlpha = 0.25; c.fillRect(x, AXIS - 6, 1, 6); c.globalAlpha = 0.8;
      const text = tick(t, step);
      if (x + 3 + c.measureText(text).width <= this.width) c.fillText(text, x + 3, AXIS - 28);
    }
    for (const [step, end_ns] of this.stepBands()) { // a step is named where its name fits into its band
      const x = Math.max(this.toX(step.start_ns), this.gutter());
      if (Math.min(this.toX(end_ns), this.width) - x > 60) c.fillText(`step ${step.number}`, x + 4, AXIS - 10);
    }
    c.fillText(`${duration(span)}${this.isNarrow() ? "" : " in view"}`, 6, AXIS - 28); c.globalAlpha = 1;
  },

  // The whole run in a strip: its steps, and the part that is in view.
  paintMap(c, ink) {
    const scale = this.plot() / this.head.span_ns, at = (ns) => this.gutter() + Math.min(Math.max(ns, 0), this.head.span_ns) * scale;
    c.fillStyle = ink; c.globalAlpha = 0.08; c.fillRect(this.gutter(), 0, this.plot(), MAP - 3);
    for (const [s, end_ns] of this.stepBands()) if (s.number % 2) c.fillRect(at(s.start_ns), 0, at(end_ns) - at(s.start_ns), MAP - 3);
    c.globalAlpha = 0.45; c.fillRect(at(this.start), 0, Math.max(at(this.end) - at(this.start), 3), MAP - 3);
    c.globalAlpha = 1;
    for (const note of this.notes) {
      const x = this.toX(note.at_ns);
      if (x < this.gutter() || x > this.width) continue;
      c.globalAlpha = 0.8; c.fillRect(x, MAP, 1.5, this.viewHeight); c.fillText(`✎ ${note.text}`, x + 4, MAP + 22); c.globalAlpha = 1;
    }
  },

  paintBox(c, ink) {
    if (!this.box) return;
    const [left, right] = this.box, [top, bottom] = this.band_y || [0, this.viewHeight];
    c.globalAlpha = 0.15; c.fillStyle = ink; c.fillRect(left, top, right - left, bottom - top); c.globalAlpha = 1;
    c.fillText(duration(this.toNs(this.box[1]) - this.toNs(this.box[0])), this.box[0] + 4, AXIS + 10);
  },
};
Object.assign(Timeline.prototype, PAINTING);
