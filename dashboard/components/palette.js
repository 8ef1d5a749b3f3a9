// The command palette: `/` or Ctrl-K opens it on any page; it goes to a page, a rank, a finding or a name of the timeline.
//
// Pages, ranks and findings come with the page. Names, of which there may be many, are asked for when it is first opened.

const MOST_SHOWN = 12, TYPING = "input, textarea, select, [contenteditable='true']";

export default function (component) {
  const root = component.parentElement.querySelector(".usp-palette");
  if (!root.palette) root.palette = new Palette(root);
  root.palette.data = component.data; root.palette.tell = component.setTriggerValue;
  nameRun(component.data.source);
  return () => { if (!root.isConnected && root.palette) { root.palette.destroy(); root.palette = null; } };
}

// An address without a run would show another one after a restart. Streamlit would add an entry to the history.
function nameRun(source) {
  const url = new URL(window.location.href);
  if (url.searchParams.has("run")) return;
  url.searchParams.set("run", new URLSearchParams(source).get("run"));
  window.history.replaceState(window.history.state, "", url);
}

// Streamlit asks "Are you connected to the internet?" when its server is gone; this server runs on the reader's machine.
const GONE = ["Server not running", "The usp-prof server does not answer. Start it again with the same command: this page then goes on where it was."];
const REFUSED = ["The server has a new token", "The usp-prof server was started again. Open the link that it printed in another tab: this page then goes on where it was."];
const dialogs = new MutationObserver(() => {
  for (const dialog of document.querySelectorAll("[data-testid='stDialog'] [role='dialog']")) {
    // Streamlit changes its own text later, so it is hidden instead of replaced.
    const hidden = [...dialog.querySelectorAll("div")].find((each) => !each.querySelector("div") && /Streamlit|connected to the internet/.test(each.textContent));
    if (!hidden) continue;
    let shown = dialog.querySelector(".usp-server");
    if (!shown) { shown = document.createElement("div"); shown.className = "usp-server"; hidden.after(shown); hidden.style.display = "none"; }
    const [title, text] = /status: 403/.test(hidden.textContent) ? REFUSED : GONE;
    if (shown.textContent !== text) { shown.textContent = text; dialog.querySelector("h2").textContent = title; }
  }
});

class Palette {
  constructor(root) {
    this.root = root; this.names = []; this.shown = []; this.at = 0;
    this.dialog = root.querySelector("dialog"); this.input = root.querySelector("input"); this.list = root.querySelector("ul");
    this.onKey = (event) => this.opening(event);
    dialogs.observe(document.body, { childList: true, subtree: true });
    window.addEventListener("keydown", this.onKey);
    root.querySelector("button").addEventListener("click", () => this.open());
    this.input.addEventListener("input", () => { this.at = 0; this.draw(); });
    this.input.addEventListener("keydown", (event) => this.steer(event));
    this.dialog.addEventListener("click", (event) => { if (event.composedPath()[0] === this.dialog) this.dialog.close(); });
  }

  destroy() { window.removeEventListener("keydown", this.onKey); }

  opening(event) {
    const control = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k";
    const typing = event.composedPath()[0].matches?.(TYPING);
    if (this.dialog.open || (!control && (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey))) return;
    event.preventDefault(); event.stopPropagation();
    this.open();
  }

  open() {
    this.input.value = ""; this.at = 0;
    this.dialog.showModal(); this.draw();
    if (this.source !== this.data.source) this.loadNames();
  }

  async loadNames() { // without them the rest still works; the next opening asks again
    const { source } = this.data;
    try {
      const answer = await fetch(`/usp/timeline?${source}`);
      if (!answer.ok) return;
      this.names = (await answer.json()).names; this.source = source;
      if (this.dialog.open) this.draw();
    } catch { /* the server is away */ }
  }

  found() {
    const typed = this.input.value.trim(), words = typed.toLowerCase().split(/\s+/).filter(Boolean), { data } = this;
    const fits = (text) => words.every((word) => text.toLowerCase().includes(word));
    const entry = (kind, value, text, beside) => ({ kind, value, text, beside });
    const found = [
      ...data.pages.filter(([, title]) => fits(title)).map(([path, title]) => entry("page", path, title, "page")),
      ...data.findings.map((title, i) => entry("finding", i, title, "finding, on the timeline")).filter(({ text }) => fits(text)),
    ];
    const number = typed.match(/^(?:rank\s*)?(\d+)$/i);
    if (number && data.ranks.includes(Number(number[1]))) found.unshift(entry("rank", Number(number[1]), `Rank ${number[1]}`, "on the timeline"));
    if (typed) {
      const first = (text) => text.toLowerCase().indexOf(words[0]);
      const names = this.names.filter(fits).slice(0, 400).sort((a, b) => first(a) - first(b) || a.length - b.length);
      found.push(...names.slice(0, MOST_SHOWN).map((name) => entry("name", name, name, "on the timeline")));
      found.splice(MOST_SHOWN - 1);
      found.push(entry("search", typed, `Search the timeline for “${typed}”`, "a regular expression"));
    }
    return found.slice(0, MOST_SHOWN);
  }

  draw() {
    this.shown = this.found();
    this.at = Math.min(this.at, this.shown.length - 1);
    this.list.replaceChildren(...this.shown.map((entry, i) => {
      const item = document.createElement("li"), text = document.createElement("span"), beside = document.createElement("small");
      item.setAttribute("role", "option"); item.setAttribute("aria-selected", String(i === this.at));
      text.textContent = text.title = entry.text; beside.textContent = entry.beside;
      item.append(text, beside);
      item.addEventListener("click", () => this.choose(i));
      return item;
    }));
  }

  steer(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) { event.preventDefault(); this.at = (this.at + step + this.shown.length) % this.shown.length; this.draw(); }
    if (event.key === "Enter") { event.preventDefault(); this.choose(this.at); }
    event.stopPropagation(); // Streamlit's and the timeline's keys are not meant
    if (event.key === "Escape") this.dialog.close();
  }

  choose(i) {
    const entry = this.shown[i];
    if (!entry) return;
    this.dialog.close();
    this.tell("chosen", { kind: entry.kind, value: entry.value });
  }
}
