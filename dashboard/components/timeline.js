// The timeline of all ranks: a canvas that is panned and zoomed like a map.
//
// The server answers tiles (see timeline/tile.py). Between tiles the last one is stretched, so that the picture follows
// the hand in the next frame; a sharp tile replaces it as soon as it arrives. Nothing here knows what a trace is: rows,
// names, categories and overlays come from the server.

const GUTTER = 180, AXIS = 36, ROW = { device: 18, host: 13, exposed: 12, actions: 16, path: 12 }, GAP = 6, LABEL_PX = 36, SETTLE_MS = 12, MARGIN = 0.3;

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
    this.pinned = new Set(data.pinned || []); this.pattern = null; this.alive = true;
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
    } catch (error) { this.message = `the timeline did not load: ${error.message}`; this.draw(); return; }
    const asked = this.data.jump || this.data.range;
    this.start = asked ? asked[0] : 0;
    this.end = asked ? asked[1] : this.head.span_ns;
    this.names = this.head.names;
    this.lines = Object.entries(this.head.rows).flatMap(([rank, rows]) => rows.map(([track, kind, depth], index) => (
      { rank: Number(rank), index, track: depth ? "" : track, kind, label: `${rank}.${index}`, rank_label: (this.head.labels || {})[rank] || `rank ${rank}` })));
    this.update(this.data, this.report);
  }

  update(data, report) {
    const jumps = data.jump && JSON.stringify(data.jump) !== JSON.stringify(this.data.jump);
    this.data = data; this.report = report;
    if (!this.head) return;
    if (jumps) { this.start = data.jump[0]; this.end = data.jump[1]; this.remember(); }
    this.setMatched(data.matched || []);
    this.members = data.members || [];
    this.layout(); this.resize();
  }

  setMatched(numbers) { // the names that a search found; all others are dimmed
    this.pattern = numbers.length ? new Uint8Array(this.names.length) : null;
    for (const number of numbers) this.pattern[number] = 1;
  }

  layout() {
    const wanted = this.data.ranks ? new Set(this.data.ranks) : null, shown = new Set(["device", ...(this.data.kinds || [])]);
    const rows = this.lines.filter((row) => (!wanted || wanted.has(row.rank)) && shown.has(row.kind));
    const order = new Map((this.data.ranks || []).map((rank, i) => [rank, i]));
    const key = (row) => [this.pinned.has(row.label) ? 0 : 1, order.get(row.rank) ?? row.rank, row.kind === "device" ? 1 : row.kind === "host" ? 2 : 0];
    rows.sort((a, b) => { const x = key(a), y = key(b); return x[0] - y[0] || x[1] - y[1] || x[2] - y[2] || a.index - b.index; });
    let y = GAP, last = null;
    this.band = 0; // pinned rows stay in a band at the top while the others scroll beneath it
    this.rows = rows.map((row) => {
      const pinned = this.pinned.has(row.label);
      if (last !== null && (last.rank !== row.rank || last.pinned !== pinned)) y += GAP;
      const placed = { ...row, pinned, y, height: ROW[row.kind] };
      y += placed.height;
      if (pinned) this.band = y + GAP / 2;
      last = placed;
      return placed;
    });
    this.height = y;
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
    } catch (error) {
      if (error.name === "AbortError") return;
      this.asked = null; this.message = `no data: ${error.message}`;
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
    const dx = event.offsetX - this.down.x, dy = event.offsetY - this.down.y;
    if (Math.abs(dx) + Math.abs(dy) > 3) this.down.far = true;
    if (!this.down.far) return;
    if (this.down.box) { this.box = [this.down.x, event.offsetX].sort((a, b) => a - b); this.draw(); return; }
    const span = this.down.end - this.down.start;
    this.start = this.down.start - (dx / this.plot()) * span; this.end = this.start + span;
    this.scrollY = this.down.scroll; this.scroll(-dy); this.moved();
  }

  release(event) {
    const down = this.down;
    this.down = null;
    if (!down) return;
    if (down.box && this.box && down.far) {
      const range = this.box.map((x) => Math.round(this.toNs(Math.max(x, GUTTER))));
      this.box = null;
      if (down.zoom) { this.show(range); return; }
      this.report("selected_range", range);
      this.selection = range; this.draw();
    } else if (!down.far && event.composedPath()[0] === this.canvas) this.click(down.x, down.y);
  }

  click(x, y) {
    if (x < GUTTER) { this.pin(y); return; }
    const hit = this.at(x, y);
    this.picked = hit && hit.event >= 0 ? { rank: hit.rank, event: hit.event, start_ns: hit.start_ns, dur_ns: hit.dur_ns, index: hit.index } : null;
    this.members = [];
    this.report("picked", this.picked ? { rank: hit.rank, event: hit.event } : null);
    this.draw();
  }

  pin(y) {
    const row = this.rowAt(y);
    if (!row) return;
    if (this.pinned.has(row.label)) this.pinned.delete(row.label); else this.pinned.add(row.label);
    this.layout(); this.scroll(0);
  }

  onKey(event) {
    if (!this.head) return;
    const middle = GUTTER + this.plot() / 2, span = this.end - this.start;
    const acts = {
      w: () => this.zoom(0.7, middle), s: () => this.zoom(1 / 0.7, middle), a: () => this.pan(-span * 0.2), d: () => this.pan(span * 0.2),
      ArrowLeft: () => this.pan(-span * 0.1), ArrowRight: () => this.pan(span * 0.1), ArrowUp: () => this.scroll(-40), ArrowDown: () => this.scroll(40),
      f: () => { this.start = 0; this.end = this.head.span_ns; this.moved(); },
      z: () => { if (this.selection) this.show(this.selection); },
      Escape: () => { this.box = this.selection = this.picked = null; this.report("selected_range", null); this.draw(); },
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
    return { rank: row.rank, rank_label: row.rank_label, index: row.index, event: tile.event[best], name: this.names[tile.name[best]], category: tile.category[best],
      start_ns: tile.start_ns + tile.start[best] * scale, dur_ns: tile.dur[best] * scale, coverage: tile.coverage[best] };
  }

  showTip(event) {
    const hit = this.at(event.offsetX, event.offsetY);
    if (!hit) {
      const raster = this.tile && this.tile.raster && this.rowAt(event.offsetY) && event.offsetX > GUTTER;
      this.tip.style.display = raster ? "block" : "none";
      if (raster) { this.tip.textContent = "zoom in for names"; this.placeTip(event); }
      return;
    }
    this.tip.textContent = `${hit.name}\n${duration(hit.dur_ns)} at ${duration(hit.start_ns)} · ${hit.rank_label} · ${this.head.categories[hit.category]}` +
      (hit.coverage < 255 ? `\nlongest of several, ${Math.round((hit.coverage / 255) * 100)} % busy` : "");
    this.tip.style.display = "block";
    this.placeTip(event);
  }

  placeTip(event) {
    this.tip.style.left = `${Math.min(event.offsetX + 14, this.width - 330)}px`;
    this.tip.style.top = `${Math.min(event.offsetY + 14, this.viewHeight - 60)}px`;
  }

  // --- the picture -----------------------------------------------------------------------------------------------

  draw() {
    if (!this.alive) return;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paint());
  }

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
      c.save(); c.beginPath(); c.rect(GUTTER, top, this.plot(), height); c.clip();
      this.paintOverlays(c, ink);
      if (this.tile) { if (this.tile.raster) this.paintRaster(c, part); else this.paintSlices(c, part); }
      this.paintMembers(c, part, ink);
      c.restore();
      this.paintGutter(c, part, ink);
      if (pinned) { c.globalAlpha = 0.4; c.fillStyle = ink; c.fillRect(0, top + height - 1, this.width, 1); c.globalAlpha = 1; }
      c.restore();
    }
    this.paintAxis(c, ink, paper); this.paintBox(c, ink);
    this.root.dataset.painted = String(performance.now()); this.root.dataset.sharp = String(this.isSharp());
  }

  isSharp() { return Boolean(this.tile && this.tile.start_ns <= this.start && this.tile.end_ns >= this.end && !this.timerPending()); }
  timerPending() { return Boolean(this.tile && Math.abs((this.tile.end_ns - this.tile.start_ns) / (this.end - this.start) - (1 + 2 * MARGIN)) > 0.02); }
  rowY(row) { return AXIS + row.y - (row.pinned ? 0 : this.scrollY); }

  paintSlices(c, rows) {
    const tile = this.tile, colors = this.data.colors, span = (tile.end_ns - tile.start_ns) / tile.width;
    const scale = (span * this.plot()) / (this.end - this.start), left = this.toX(tile.start_ns);
    const dim = this.pattern;
    for (const row of rows) {
      const place = tile.places.get(row.label);
      if (place === undefined) continue;
      const inset = row.kind === "path" ? 3 : 0, y = this.rowY(row) + inset, h = row.height - 1 - 2 * inset;
      for (let i = tile.first[place]; i < tile.first[place + 1]; i++) {
        const x = left + tile.start[i] * scale, w = Math.max(tile.dur[i] * scale, 0.7);
        if (x + w < GUTTER || x > this.width) continue;
        c.globalAlpha = (dim && !dim[tile.name[i]] ? 0.18 : 1) * (0.35 + (0.65 * tile.coverage[i]) / 255);
        c.fillStyle = colors[tile.category[i]];
        c.fillRect(x, y, w > 3 ? w - 0.5 : w, h);
        if (w > LABEL_PX && h > 9) this.label(c, this.names[tile.name[i]], Math.max(x, GUTTER), y + h / 2 + 0.5, Math.min(x + w, this.width) - Math.max(x, GUTTER), tile.category[i]);
      }
    }
    c.globalAlpha = 1;
  }

  label(c, text, x, y, room, category) {
    const letters = Math.floor((room - 6) / 6.6);
    if (letters < 3) return;
    c.globalAlpha = 1; c.fillStyle = this.data.inks[category];
    c.fillText(text.length > letters ? `${text.slice(0, letters - 1)}…` : text, x + 3, y);
  }

  paintRaster(c, rows) {
    const tile = this.tile;
    if (!tile.image) tile.image = rasterImage(tile, this.data.colors);
    this.strip.width = tile.width; this.strip.height = tile.rows;
    this.strip.getContext("2d").putImageData(tile.image, 0, 0);
    c.imageSmoothingEnabled = false;
    const x0 = this.toX(tile.start_ns), x1 = this.toX(tile.end_ns);
    for (const row of rows) {
      const place = tile.places.get(row.label);
      if (place !== undefined) c.drawImage(this.strip, 0, place, tile.width, 1, x0, this.rowY(row), x1 - x0, row.height - 1);
    }
  }

  paintOverlays(c, ink) {
    for (const step of this.head.steps) {
      const x = this.toX(step.start_ns), w = this.toX(step.end_ns) - x;
      if (step.number % 2) { c.globalAlpha = 0.05; c.fillStyle = ink; c.fillRect(x, AXIS, w, this.viewHeight); }
    }
    c.globalAlpha = 1;
    const range = this.selection;
    if (range) { c.globalAlpha = 0.12; c.fillStyle = ink; c.fillRect(this.toX(range[0]), AXIS, this.toX(range[1]) - this.toX(range[0]), this.viewHeight); c.globalAlpha = 1; }
  }

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
    const launch = this.data.launch;
    if (launch && this.picked) {
      const from = rows.find((r) => r.rank === launch.rank && r.index === launch.row), to = rows.find((r) => r.rank === this.picked.rank && r.index === this.picked.index);
      if (from && to) { c.beginPath(); c.moveTo(this.toX(launch.start_ns), this.rowY(from) + from.height / 2); c.lineTo(this.toX(this.picked.start_ns), this.rowY(to) + to.height / 2); c.stroke(); }
    }
  }

  paintGutter(c, rows, ink) {
    c.save(); c.beginPath(); c.rect(0, AXIS, GUTTER - 6, this.viewHeight); c.clip();
    c.fillStyle = ink;
    let last = null;
    for (const row of rows) {
      const first = last === null || last.rank !== row.rank || last.track !== row.track;
      if (first) {
        const y = this.rowY(row) + row.height / 2, newRank = last === null || last.rank !== row.rank;
        c.globalAlpha = 1;
        if (newRank) { c.font = "bold 11px 'DejaVu Sans', sans-serif"; c.fillText(clipped(c, `${row.pinned ? "● " : ""}${row.rank_label}`, row.track ? 66 : GUTTER - 14), 6, y); c.font = "11px 'DejaVu Sans', sans-serif"; }
        c.globalAlpha = 0.7; c.fillText(clipped(c, row.track, GUTTER - 84), 76, y);
      }
      last = row;
    }
    c.restore(); c.globalAlpha = 1;
  }

  paintAxis(c, ink, paper) {
    c.fillStyle = paper; c.fillRect(0, 0, this.width, AXIS); c.fillStyle = ink; c.globalAlpha = 0.8;
    const span = this.end - this.start, step = nice(span / (this.plot() / 110));
    const zero = this.data.zero || 0;
    for (let t = Math.ceil((this.start - zero) / step) * step; t < this.end - zero; t += step) {
      const x = this.toX(t + zero);
      if (x < GUTTER) continue;
      c.globalAlpha = 0.25; c.fillRect(x, AXIS - 6, 1, 6); c.globalAlpha = 0.8; c.fillText(tick(t, step), x + 3, AXIS - 26);
    }
    for (const s of this.head.steps) {
      const x = Math.max(this.toX(s.start_ns), GUTTER);
      if (this.toX(s.end_ns) - x > 60) c.fillText(`step ${s.number}`, x + 4, AXIS - 10);
    }
    c.fillText(`${duration(span)} in view`, 6, AXIS - 26); c.globalAlpha = 1;
  }

  paintBox(c, ink) {
    if (!this.box) return;
    c.globalAlpha = 0.15; c.fillStyle = ink; c.fillRect(this.box[0], 0, this.box[1] - this.box[0], this.viewHeight); c.globalAlpha = 1;
    c.fillText(duration(this.toNs(this.box[1]) - this.toNs(this.box[0])), this.box[0] + 4, AXIS + 10);
  }
}

function decode(buffer, rows) {
  const length = new DataView(buffer).getUint32(0, true);
  const tile = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let at = 4 + length;
  tile.places = new Map(rows.map((row, i) => [row.label, i]));
  if (tile.rows) {
    const cells = tile.rows * tile.width;
    tile.raster = { category: new Uint8Array(buffer, at, cells), coverage: new Uint8Array(buffer, at + cells, cells) };
    return tile;
  }
  const n = tile.counts.reduce((a, b) => a + b, 0);
  const take = (Kind, size) => { const column = new Kind(buffer, at, n); at += n * size; return column; };
  tile.start = take(Float32Array, 4); tile.dur = take(Float32Array, 4); tile.event = take(Int32Array, 4);
  tile.name = take(Uint32Array, 4); tile.category = take(Uint8Array, 1); tile.coverage = take(Uint8Array, 1);
  tile.first = [0];
  for (const count of tile.counts) tile.first.push(tile.first[tile.first.length - 1] + count);
  return tile;
}

function rasterImage(tile, colors) {
  const image = new ImageData(tile.width, tile.rows), pixels = image.data;
  const table = colors.map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const { category, coverage } = tile.raster;
  for (let i = 0; i < category.length; i++) {
    if (!category[i]) continue;
    const color = table[category[i] - 1];
    pixels[4 * i] = color[0]; pixels[4 * i + 1] = color[1]; pixels[4 * i + 2] = color[2]; pixels[4 * i + 3] = 70 + (185 * coverage[i]) / 255;
  }
  return image;
}

function clipped(c, text, room) {
  if (c.measureText(text).width <= room) return text;
  let letters = Math.max(3, Math.floor((text.length * room) / c.measureText(text).width) - 1);
  return `${text.slice(0, letters)}…`;
}

function nice(rough) {
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  return [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough);
}

function duration(ns) {
  const size = Math.abs(ns);
  if (size >= 1e9) return `${(ns / 1e9).toFixed(3)} s`;
  if (size >= 1e6) return `${(ns / 1e6).toFixed(3)} ms`;
  if (size >= 1e3) return `${(ns / 1e3).toFixed(3)} µs`;
  return `${Math.round(ns)} ns`;
}

function tick(t, step) {
  const [unit, name] = step >= 1e8 ? [1e9, "s"] : step >= 1e5 ? [1e6, "ms"] : step >= 1e2 ? [1e3, "µs"] : [1, "ns"];
  return `${(t / unit).toFixed(Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9)))} ${name}`;
}
