// The tool bar above the canvas: search, row filter, kinds of rows, grouping, the rank wall, help. Methods of Timeline.

const KINDS = { host: "Host threads", exposed: "Exposed", contended: "Contended", actions: "Actions", path: "Critical path", counters: "Counters" };
const KEYS = [
  ["W S, Ctrl + wheel", "zoom"], ["A D, drag", "pan"], ["wheel, ↑ ↓, Page ↑ ↓", "scroll"], ["shift + drag", "select an area"],
  ["alt + drag, Z", "zoom into a box, zoom to the selection"], ["double-click", "fit a slice"], ["F", "fit the picked slice or the selection; again: the whole run"], ["Ctrl + C", "copy the name of the picked slice"],
  ["/", "search"], ["Enter, shift + Enter", "next and previous hit"], ["L", "longest hit, then the next longest; without a search: of the picked name"], [", .", "previous and next slice of the row"], ["[ ]", "follow the arrows back and forth: launch, kernel, the call on other ranks"], ["M", "mark the slice or the selection"],
  ["Q", "show or hide the details"], ["C", "fold all ranks"], ["click a rank", "fold it"], ["click a step", "zoom to it"], ["click a row name", "pin the row, or open a collapsed track"], ["Ctrl + K", "go to a page, rank, finding or name"], ["?", "show these keys"],
];
const WHEEL = "usp-timeline-wheel"; // "zoom": the wheel alone zooms

const BAR = {
  buildBar() {
    const bar = (this.bar = this.root.appendChild(element("div", "usp-bar")));
    bar.addEventListener("keydown", (event) => event.stopPropagation()); // the page's own keys are not meant
    this.searchField = this.field("Search", "Search: nccl.*AllReduce ( / )", "find", () => this.search());
    this.searchField.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") this.canvas.focus({ preventScroll: true });
    });
    this.previous = this.button("‹", "Previous hit (shift + Enter)", () => this.step(-1));
    this.next = this.button("›", "Next hit (Enter)", () => this.step(1));
    this.count = bar.appendChild(element("span", "usp-count"));
    this.filterField = this.field("Filter rows", "Filter rows", "filter", () => this.relayout());
    this.kindButtons = bar.appendChild(element("span", "usp-kinds"));
    this.grouping = bar.appendChild(element("select"));
    this.grouping.setAttribute("aria-label", "Group ranks by");
    this.grouping.addEventListener("change", () => { this.by = this.grouping.value; this.relayout(); });
    if (this.data.wall) this.wallButton = this.button("Ranks", "Choose ranks on a map of all ranks", () => this.toggleWall());
    this.allRanks = this.button("Show all ranks", "Show all ranks", () => { this.only = this.only ? null : Object.keys(this.head.rows).map(Number); this.fillBar(); this.relayout(); });
    this.helpButton = this.button("?", "Keys", () => this.toggleHelp());
    this.legend = bar.appendChild(element("span", "usp-legend"));
    this.ignoredPlace = bar.appendChild(element("span", "usp-ignored"));
    this.panel = this.root.appendChild(element("div", "usp-panel"));
  },

  field(label, placeholder, name, act) {
    const field = this.bar.appendChild(element("input"));
    Object.assign(field, { type: "search", placeholder, maxLength: MOST_PATTERN });
    field.setAttribute("aria-label", label);
    let timer = null;
    field.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => { this[name] = field.value; act(); this.remember(); }, 120); });
    return field;
  },

  button(text, title, act, parent = this.bar) {
    const made = parent.appendChild(element("button", "", text));
    made.type = "button"; made.title = title; made.setAttribute("aria-label", title);
    made.addEventListener("click", act);
    return made;
  },

  fillBar() { // show the state in the bar
    if (!this.bar || !this.head) return;
    const typedIn = this.root.getRootNode().activeElement; // its text may be newer than this.find
    for (const [field, text] of [[this.searchField, this.find], [this.filterField, this.filter]]) if (field !== typedIn) field.value = text;
    if (!this.kindButtons.childElementCount) this.buildKinds();
    for (const made of this.kindButtons.children) made.setAttribute("aria-pressed", String(this.kinds.has(made.dataset.kind)));
    const axes = this.data.axes || [];
    this.grouping.hidden = !axes.length;
    this.grouping.replaceChildren(...["", ...axes].map((axis) => Object.assign(element("option", "", axis ? `by ${axis}` : "by rank"), { value: axis })));
    this.grouping.value = this.by;
    const all = Object.keys(this.head.rows).length, shown = this.ranks().length;
    this.allRanks.hidden = !this.only && shown === all;
    this.allRanks.textContent = shown < all ? `${shown} of ${all} ranks: show all` : "Show fewer ranks";
    this.fillLegend();
  },

  tellIgnored(ignored) { // parts of a link that this run does not have
    this.ignored = ignored;
    this.ignoredPlace.textContent = ignored.length ? `Not in this run, so ignored: ${ignored.join(", ").slice(0, 200)}` : "";
  },

  buildKinds() { // once, so that a pressed button keeps the focus
    const there = new Set(this.lines.map((line) => line.kind));
    for (const [kind, name] of Object.entries(KINDS)) {
      if (!there.has(kind)) continue;
      const made = this.button(name, `Show or hide: ${name}`, () => {
        if (this.kinds.has(kind)) this.kinds.delete(kind); else this.kinds.add(kind);
        this.fillBar(); this.relayout(); if (this.find) this.search();
      }, this.kindButtons);
      made.dataset.kind = kind;
    }
  },

  fillLegend() {
    const named = new Map(), color = (category) => this.data.colors[this.head.categories.indexOf(category)];
    const axes = new Set(this.names.filter((name) => name.startsWith("exposed ")).map((name) => name.slice(8)));
    named.set("compute", "compute"); named.set("memcpy", "copies");
    for (const axis of this.head.categories) if (axes.has(axis)) named.set(axis, axis);
    if (this.kinds.has("host")) for (const [category, name] of [["op", "op"], ["annotation", "annotation"], ["runtime", "runtime call"]]) named.set(category, name);
    if (this.kinds.has("actions")) for (const [category, name] of [["F", "forward"], ["B", "backward"], ["I", "input gradient"], ["W", "weight gradient"]]) named.set(category, name);
    this.legend.replaceChildren(...[...named].map(([category, name]) => {
      const chip = element("span", "", name);
      chip.prepend(element("i")); chip.firstChild.style.background = color(category);
      return chip;
    }));
  },

  toggleHelp() {
    const shows = this.panel.dataset.shows === "help";
    this.panel.replaceChildren(); this.panel.dataset.shows = shows ? "" : "help";
    if (!shows) {
      const list = this.panel.appendChild(element("dl"));
      for (const [keys, does] of KEYS) list.append(element("dt", "", keys), element("dd", "", does));
      const label = this.panel.appendChild(element("label", "", " the wheel alone zooms"));
      const box = element("input");
      box.type = "checkbox"; box.checked = wheelZooms();
      box.addEventListener("change", () => window.localStorage.setItem(WHEEL, box.checked ? "zoom" : "scroll"));
      label.prepend(box);
    }
    this.resize();
  },

  toggleWall() {
    const shows = this.panel.dataset.shows === "wall";
    this.wall?.destroy(); this.wall = null;
    this.panel.replaceChildren(); this.panel.dataset.shows = shows ? "" : "wall";
    if (!shows) {
      const place = this.panel.appendChild(element("div", "usp-wall"));
      this.wall = place.wall = new Wall(place);
      this.wall.update({
        source: this.source, height: 150, range: [0, this.head.span_ns], chosen: this.ranks(), parts: this.head.categories, colors: this.data.colors,
        steps: this.head.steps, ...this.data.wall,
      }, (_, chosen) => { this.only = [...chosen].sort((a, b) => a - b); this.wall.data.chosen = chosen; this.fillBar(); this.relayout(); });
      this.tellView();
    }
    this.resize();
  },

  // --- search: hits keep the zoom ---------------------------------------------------------------------------------

  async search() {
    const pattern = this.find;
    this.hits = null; this.at_hit = this.at_longest = -1; this.dimmed = null;
    if (pattern) {
      let found;
      try { found = await this.from.search(pattern, this.ranks(), ["device", ...this.kinds]); } catch (error) { found = { fault: error.message }; }
      if (!this.alive || pattern !== this.find) return; // another one was typed meanwhile
      if (found.fault) { this.count.textContent = found.fault; this.draw(); return; }
      this.hits = found; this.dimmed = new Uint8Array(this.names.length);
      for (const number of found.names) this.dimmed[number] = 1;
      if (!found.names.length) this.dimmed = null;
    }
    this.tellHits(); this.draw();
  },

  tellHits() {
    const { hits } = this, some = Boolean(hits?.hits.length);
    this.previous.disabled = this.next.disabled = !some;
    const place = this.at_hit >= 0 ? `${COUNT(this.at_hit + 1)} of ` : "";
    this.count.textContent = !hits ? "" : `${place}${COUNT(hits.count)} ${hits.count === 1 ? "hit" : "hits"}${hits.count > hits.hits.length ? ` (first ${COUNT(hits.hits.length)})` : ""}`;
  },

  step(by) {
    const hits = this.hits?.hits;
    if (!hits?.length) return;
    if (this.at_hit < 0) { // start at the first hit in view, else at the next one
      const first = hits.findIndex((hit) => hit[2] + hit[3] >= this.start);
      this.at_hit = first < 0 ? 0 : first;
      if (by < 0) this.at_hit = (this.at_hit - 1 + hits.length) % hits.length;
    } else this.at_hit = (this.at_hit + by + hits.length) % hits.length;
    this.tellHits(); this.goToHit(hits[this.at_hit]);
  },

  async stepLongest() { // the longest hit, then the next longest ones; without a search, of the slices named like the picked one
    const name = this.dock.querySelector(".usp-name")?.textContent;
    if (!this.find && this.picked && name) { this.find = this.searchField.value = literal(name); await this.search(); this.remember(0); }
    if (!this.hits?.longest.length) return;
    this.at_longest = (this.at_longest + 1) % this.hits.longest.length;
    this.goToHit(this.hits.longest[this.at_longest]);
  },

  goToHit([rank, row, start_ns, dur_ns, event]) { this.visit({ rank, row, start_ns, dur_ns, event }); },
};
Object.assign(Timeline.prototype, BAR);

// The pattern that matches only this name; a long name is cut to its beginning.
function literal(name) {
  const pattern = `^${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`;
  return pattern.length <= MOST_PATTERN ? pattern : pattern.slice(0, MOST_PATTERN).replace(/\\+$/, "");
}

function wheelZooms() { try { return window.localStorage.getItem(WHEEL) === "zoom"; } catch { return false; } }
