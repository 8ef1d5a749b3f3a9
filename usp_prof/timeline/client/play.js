// Play the fix: the timeline morphs from recorded to predicted, on the same canvas. Methods of Timeline.
//
// The server sends one step in both states. Each frame writes the positions between the two into the tile that is painted.
// With "reduced motion" in the system's settings, only the two end states are shown.

const PLAY_S = 2.4;
const lessMotion = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;
const say = (place, text) => { if (place.textContent !== text) place.textContent = text; }; // no layout in each frame
const eased = (p) => (p < 0.5 ? 2 * p * p : 1 - 2 * (1 - p) ** 2);

const PLAY = {
  async loadPlay() {
    let tile;
    try {
      const answer = await fetch(`/usp/fix?${this.data.play}`);
      if (!answer.ok) throw new Error(await answer.text());
      tile = decodeMorph(await answer.arrayBuffer());
    } catch (error) {
      this.message = `This cannot be played: ${error.message}`; this.draw();
      return;
    }
    if (!this.alive) return;
    this.head = tile.head;
    this.begin(...(this.data.range || [0, this.head.span_ns * 1.02]));
    tile.places = new Map(this.rows.map((row, i) => [row.label, i]));
    this.tile = tile;
    if (!this.data.still) this.controls();
    this.at_share(0);
  },

  controls() {
    const bar = this.root.appendChild(document.createElement("div"));
    bar.className = "usp-play";
    this.playButton = bar.appendChild(document.createElement("button"));
    this.slider = bar.appendChild(document.createElement("input"));
    Object.assign(this.slider, { type: "range", min: 0, max: 1000, value: 0 });
    this.slider.setAttribute("aria-label", "from recorded to predicted");
    this.state = bar.appendChild(document.createElement("span"));
    this.playButton.addEventListener("click", () => this.play());
    this.slider.addEventListener("input", () => { cancelAnimationFrame(this.playing); this.at_share(this.slider.value / 1000); });
  },

  at_share(share) { // 0: as recorded, 1: as predicted
    const { tile } = this, [a0, b0, a1, b1] = tile.states;
    this.share = share;
    for (let i = 0; i < tile.start.length; i++) {
      tile.start[i] = a0[i] + (a1[i] - a0[i]) * share;
      tile.dur[i] = b0[i] + (b1[i] - b0[i]) * share - tile.start[i];
    }
    if (this.slider) {
      this.slider.value = Math.round(share * 1000);
      say(this.playButton, share < 1 ? "▶ Play the fix" : "↺ Again");
      say(this.state, share <= 0 ? "as recorded" : share >= 1 ? "as predicted" : "");
    }
    this.paint();
  },

  play() {
    cancelAnimationFrame(this.playing);
    if (lessMotion()) { this.at_share(this.share < 1 ? 1 : 0); return; }
    let first = null, last = null, longest = 0;
    const frame = (now) => {
      if (!this.alive) return;
      if (first === null) first = now; else longest = Math.max(longest, now - last);
      last = now;
      const share = Math.min((now - first) / (PLAY_S * 1000), 1);
      this.at_share(eased(share));
      if (share < 1) this.playing = requestAnimationFrame(frame);
      else this.root.dataset.longestFrame = String(Math.round(longest));
    };
    this.at_share(0);
    this.playing = requestAnimationFrame(frame);
  },

  // Where the step's last work ends, then and now.
  paintEnds(c, ink) {
    if (!this.data.play || !this.tile) return;
    const [before, after] = this.head.lasts_ns, end = before + (after - before) * this.share;
    c.fillStyle = c.strokeStyle = ink; c.globalAlpha = 0.5; c.setLineDash([4, 4]);
    c.beginPath(); c.moveTo(this.toX(before), AXIS); c.lineTo(this.toX(before), this.viewHeight); c.stroke(); c.setLineDash([]);
    c.globalAlpha = 1; c.fillRect(this.toX(end) - 1, AXIS, 2, this.viewHeight);
    c.textAlign = "right"; c.fillText(duration(end), Math.min(this.toX(end) - 5, this.width - 2), AXIS - 10); c.textAlign = "left";
  },
};
Object.assign(Timeline.prototype, PLAY);

function decodeMorph(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const n = head.counts.reduce((a, b) => a + b, 0);
  let at = 4 + length;
  const take = (Kind, size) => { const column = new Kind(buffer, at, n); at += n * size; return column; };
  const states = [0, 1, 2, 3].map(() => take(Float32Array, 4));
  const tile = {
    head, states, start_ns: head.start_ns, end_ns: head.end_ns, width: head.width,
    start: new Float32Array(n), dur: new Float32Array(n), event: new Int32Array(n).fill(-1),
  };
  tile.name = take(Uint32Array, 4); tile.category = take(Uint8Array, 1); tile.coverage = take(Uint8Array, 1);
  tile.first = [0];
  for (const count of head.counts) tile.first.push(tile.first[tile.first.length - 1] + count);
  return tile;
}
