// What of the timeline lives in the address: range, pinned rows, folded ranks, the picked slice, the selected area, notes.
// Methods of Timeline.
//
// The canvas writes these into the address itself, so that panning asks nobody. Streamlit writes its own part of the
// address anew whenever a choice changes; what the canvas owns is put back after each update. What was last in view is
// also kept for this window, for when the reader comes back to the page through its tab.

const KEPT = (window.uspTimelineViews ||= new Map()); // source -> what `writeAddress` keeps
const OWNED = ["range", "pins", "folds", "picked", "area", "notes"];

const ADDRESS = {
  linkOpened() { return JSON.stringify([this.data.range || this.data.jump || null, this.data.pinned, this.data.folded, this.data.picked, this.data.area]); },

  // A link that asks for something else than last time wins over what was last in view.
  recall() {
    const kept = this.owns() ? KEPT.get(this.source) : null;
    if (!kept || kept.opened !== this.linkOpened()) return;
    this.start = kept.start; this.end = kept.end; this.picked = kept.picked;
    this.pinned = new Set(kept.pinned); this.folded = new Set(kept.folded);
    this.selection = kept.selection; this.area = kept.area; this.notes = kept.notes;
  },

  owns() { return !this.data.group && !this.data.fixed; }, // two timelines on one page have no address of their own

  tellView() { // whoever shows the whole run beside it marks what is in view
    if (!this.owns()) return;
    const detail = { source: this.source, start: this.start, end: this.end };
    window.dispatchEvent(new CustomEvent("usp-timeline-view", { detail }));
  },

  remember(delay = 250) {
    if (!this.owns() || !this.head) return;
    clearTimeout(this.addressTimer);
    if (!delay) { this.writeAddress(); return; } // the server reads it in the run that is asked for next
    this.addressTimer = setTimeout(() => this.alive && this.isItsPage() && this.writeAddress(), delay);
  },

  // A slow server leaves the canvas standing for a while after the reader went on: the address is another page's then.
  isItsPage() { return window.location.pathname === this.page; },

  writeAddress() {
    KEPT.set(this.source, {
      opened: this.linkOpened(), start: this.start, end: this.end, pinned: [...this.pinned], folded: [...this.folded],
      picked: this.picked, selection: this.selection, area: this.area, notes: this.notes,
    });
    const url = new URL(window.location.href), whole = this.start === 0 && this.end === this.head.span_ns;
    const values = [
      whole ? "" : `${Math.round(this.start)}-${Math.round(this.end)}`,
      [...this.pinned].join("-"), [...this.folded].join("-"), this.picked ? `${this.picked.rank}.${this.picked.event}` : "",
      this.selection ? [this.selection.join("-"), ...(this.area ? [[...this.area].join("-")] : [])].join(":") : "",
      this.notes.map((note) => `${note.at_ns}:${note.text}`).join("|"),
    ];
    OWNED.forEach((name, i) => { if (values[i]) url.searchParams.set(name, values[i]); else url.searchParams.delete(name); });
    if (url.href !== window.location.href) window.history.replaceState(window.history.state, "", url);
  },
};
Object.assign(Timeline.prototype, ADDRESS);
