// Rank wall: one row of pixels per rank, colored by what fills most of each moment. Dragging over rows chooses ranks.
//
// The server sends all ranks as one raster; their order comes with the page. A box shows what the timeline has in view.

const EDGE = 62, HEAD = 12, TALLEST_ROW = 14;

class Wall {
  constructor(root) {
    this.root = root; this.alive = true;
    root.replaceChildren();
    this.canvas = root.appendChild(document.createElement("canvas"));
    this.tip = root.appendChild(document.createElement("div")); this.tip.className = "usp-tip";
    this.strip = document.createElement("canvas");
    this.observer = new ResizeObserver(() => { this.fetch(); this.paint(); });
    this.observer.observe(root);
    this.onView = (event) => { if (event.detail.source === this.data?.source) { this.view = event.detail; this.paint(); } };
    this.onUp = () => this.release();
    window.addEventListener("usp-timeline-view", this.onView);
    window.addEventListener("mouseup", this.onUp);
    this.canvas.addEventListener("mousedown", (event) => { this.drag = [this.rowAt(event.offsetY), this.rowAt(event.offsetY)]; this.paint(); });
    this.canvas.addEventListener("mousemove", (event) => this.move(event));
    this.canvas.addEventListener("mouseleave", () => { this.tip.style.display = "none"; });
  }

  destroy() {
    this.alive = false; this.observer.disconnect();
    window.removeEventListener("usp-timeline-view", this.onView);
    window.removeEventListener("mouseup", this.onUp);
    this.root.replaceChildren();
  }

  update(data, report) { this.data = data; this.report = report; this.image = null; this.fetch(); this.paint(); }

  get plot() { return Math.max(this.root.clientWidth - EDGE, 40); }
  get rowHeight() { return Math.max(1, Math.min(TALLEST_ROW, Math.floor(this.data.height / this.data.order.length))); }
  rowAt(y) { return Math.min(Math.max(Math.floor((y - HEAD) / this.rowHeight), 0), this.data.order.length - 1); }
  toX(ns) { return EDGE + ((ns - this.data.range[0]) / (this.data.range[1] - this.data.range[0])) * this.plot; }

  async fetch() {
    const query = `${this.data.source}&w=${Math.round(this.plot)}`;
    if (query === this.asked) return;
    this.asked = query; this.began = performance.now();
    try {
      const answer = await fetch(`/usp/wall?${query}`);
      if (!answer.ok) throw new Error(await answer.text());
      const tile = decode(await answer.arrayBuffer(), []);
      if (query !== this.asked) return;
      this.tile = tile; this.image = null; this.paint();
      this.root.dataset.drawn = String(Math.round(performance.now() - this.began));
    } catch (error) {
      this.asked = null;
      if (this.alive) setTimeout(() => this.alive && this.fetch(), 3000);
    }
  }

  // The raster's rows in the order shown; the server sorts them by rank.
  ordered() {
    const { tile } = this, place = new Map(tile.ranks.map((rank, i) => [rank, i])), { order } = this.data;
    const raster = { category: new Uint8Array(order.length * tile.width), coverage: new Uint8Array(order.length * tile.width) };
    order.forEach((rank, i) => {
      const from = place.get(rank) * tile.width;
      for (const column of ["category", "coverage"]) raster[column].set(tile.raster[column].subarray(from, from + tile.width), i * tile.width);
    });
    return rasterImage({ raster, width: tile.width, rows: order.length }, this.data.colors);
  }

  paint() {
    if (!this.data || !this.alive) return;
    const { order, heads, chosen } = this.data, h = this.rowHeight, ratio = window.devicePixelRatio || 1;
    const width = this.root.clientWidth, height = HEAD + order.length * h + 2, c = this.canvas.getContext("2d");
    this.canvas.style.width = `${width}px`; this.canvas.style.height = `${height}px`;
    this.canvas.width = width * ratio; this.canvas.height = height * ratio;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    const ink = getComputedStyle(this.root).getPropertyValue("--st-text-color") || "#222";
    c.fillStyle = ink; c.font = "10px 'DejaVu Sans', sans-serif"; c.textBaseline = "middle";
    if (!this.tile) { c.fillText("loading …", 4, HEAD + 8); return; }
    if (!this.image) {
      this.image = this.ordered();
      this.strip.width = this.image.width; this.strip.height = this.image.height;
      this.strip.getContext("2d").putImageData(this.image, 0, 0);
    }
    c.imageSmoothingEnabled = false;
    c.drawImage(this.strip, EDGE, HEAD, this.plot, order.length * h);
    this.paintHeads(c, ink, heads, h);
    if (chosen.length && chosen.length < order.length) { // ranks that the timeline does not show are faded
      const shown = new Set(chosen);
      c.fillStyle = getComputedStyle(this.root).getPropertyValue("--st-background-color") || "#fff"; c.globalAlpha = 0.55;
      order.forEach((rank, i) => { if (!shown.has(rank)) c.fillRect(EDGE, HEAD + i * h, this.plot, h); });
      c.globalAlpha = 1;
    }
    c.strokeStyle = ink; c.lineWidth = 1.5;
    if (this.view) { // the part that the timeline shows
      const left = Math.max(this.toX(this.view.start), EDGE), right = Math.min(this.toX(this.view.end), width);
      c.strokeRect(left, HEAD - 1, Math.max(right - left, 3), order.length * h + 2);
    }
    if (this.drag) {
      const [a, b] = this.span();
      c.fillStyle = ink; c.globalAlpha = 0.25; c.fillRect(0, HEAD + a * h, width, (b - a + 1) * h); c.globalAlpha = 1;
    }
  }

  paintHeads(c, ink, heads, h) {
    c.fillStyle = ink;
    let free = 0;
    for (const step of this.data.steps || []) {
      const x = this.toX(step.start_ns), text = `step ${step.number}`;
      if (x < Math.max(EDGE, free) || x + 2 + c.measureText(text).width > EDGE + this.plot) continue;
      c.fillText(text, x + 2, HEAD / 2); free = x + 60;
    }
    let below = 0;
    for (const [row, text] of heads) {
      const y = HEAD + row * h;
      if (y < below || (below && y + 12 > HEAD + this.data.order.length * h)) continue;
      c.globalAlpha = 0.5; c.fillRect(0, y, EDGE - 4, 1); c.globalAlpha = 1;
      c.fillText(text, 2, y + Math.max(h / 2, 6) + 1); below = y + 12;
    }
  }

  span() { return [...this.drag].sort((a, b) => a - b); }

  move(event) {
    if (!this.tile) return;
    if (this.drag) { this.drag[1] = this.rowAt(event.offsetY); this.paint(); }
    const row = this.rowAt(event.offsetY), rank = this.data.order[row];
    const pixel = Math.min(Math.max(Math.floor(event.offsetX - EDGE), 0), this.tile.width - 1);
    const at = this.tile.ranks.indexOf(rank) * this.tile.width + pixel, part = this.tile.raster.category[at];
    const busy = Math.round(this.tile.raster.coverage[at] / 2.55);
    const filled = part ? `${this.data.parts[part - 1]}, ${busy}% busy` : "idle";
    const place = this.data.places[row] ? ` (${this.data.places[row]})` : "";
    this.tip.textContent = `rank ${rank}${place}${event.offsetX >= EDGE ? `: ${filled}` : ""}`;
    this.tip.style.display = "block";
    this.tip.style.left = `${Math.max(Math.min(event.offsetX + 12, this.root.clientWidth - 180), 0)}px`;
    this.tip.style.top = `${event.offsetY + 12}px`;
  }

  release() {
    if (!this.drag) return;
    const [a, b] = this.span();
    this.drag = null;
    this.report("chosen", this.data.order.slice(a, b + 1));
    this.paint();
  }
}
