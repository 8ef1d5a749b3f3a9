// The timelines of a report: created when the page is read, redrawn when its theme changes, whole and light on paper.

// CSS pixels without margins: A4 is narrower, so its text is taller; Letter is wider and lower, so it has less room for a picture.
const A4_WIDTH = 703, LETTER = { width: 725, height: 980 };
const PAPER_PX = 900, WIDEST_PX = 1050, LEGEND_PX = 90; // widths to draw at (the widest has the smallest text); legend and margins
const ALONE = 0.8 * LETTER.height; // the end of the tables has room on the timeline's own sheet

function roomOnPaper(root) { // the height that is left on the first sheet below what is printed above the timeline
  const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]).filter((rule) => rule.media?.mediaText === "print");
  const main = document.querySelector("main");
  for (const rule of rules) rule.media.mediaText = "all";
  main.style.width = `${A4_WIDTH}px`;
  const used = root.getBoundingClientRect().top - main.getBoundingClientRect().top;
  main.style.removeProperty("width");
  for (const rule of rules) rule.media.mediaText = "print";
  return LETTER.height - used;
}

// Lay the timeline out with all lanes or folded, below the rest or on its own sheet; return the width to draw it at.
function layOutForPaper(line, root) {
  const opened = line.folded, width = (room) => Math.max(PAPER_PX, ((line.height + AXIS + 12) * LETTER.width) / Math.max(room - LEGEND_PX, 1));
  for (const room of [roomOnPaper(root), ALONE]) {
    for (const folded of [opened, new Set(["all"])]) {
      line.folded = folded; line.layout();
      if (width(room) <= WIDEST_PX) return width(room);
    }
  }
  const ranks = line.ranks(), most = Math.floor((ranks.length * PAPER_PX) / width(ALONE)); // the straggler and the ranks next to it
  const first = Math.min(Math.max(ranks.indexOf(line.data.focus) - Math.floor(most / 2), 0), ranks.length - most);
  line.only = ranks.slice(first, first + most); line.layout();
  root.dataset.printed = `${most} of ${ranks.length} ranks`;
  return PAPER_PX;
}

window.addEventListener("DOMContentLoaded", () => {
  for (const root of document.querySelectorAll(".usp-timeline")) {
    const { themes, ...options } = JSON.parse(root.dataset.options), theme = () => document.documentElement.dataset.theme;
    const line = (root.timeline = new Timeline(root, { ...options, ...themes[theme()] }));
    window.uspDelayLoad(line.loaded);
    const color = (name) => { line.update({ ...options, ...themes[name] }); line.fillBar(); line.draw(); };
    new MutationObserver(() => color(theme())).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    let before = null;
    window.addEventListener("beforeprint", async () => {
      if (!line.head) return;
      before = { folded: new Set(line.folded), only: line.only };
      root.style.width = `${layOutForPaper(line, root)}px`;
      for (const [name, value] of [["text", "#1b1f24"], ["background", "#ffffff"]]) root.style.setProperty(`--st-${name}-color`, value);
      options.height = line.height + AXIS + 12; color("light");
      clearTimeout(line.timer); await line.fetchTile(); line.paint();
    });
    window.addEventListener("afterprint", () => {
      for (const name of ["--st-text-color", "--st-background-color", "width"]) root.style.removeProperty(name);
      if (before) { Object.assign(line, before); line.layout(); }
      delete root.dataset.printed;
      options.height = JSON.parse(root.dataset.options).height; color(theme());
    });
  }
});
