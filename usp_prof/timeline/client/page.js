// The timelines of a report: created when the page is read, redrawn when its theme changes, whole and light on paper.

const PAPER_PX = 900; // drawn at this width, a picture's text is as large on paper as that of tables
const TALLEST_ON_PAPER = 700; // at this width, a Letter sheet has 1,200: the tables before it stay on the same sheet

window.addEventListener("DOMContentLoaded", () => {
  for (const root of document.querySelectorAll(".usp-timeline")) {
    const { themes, ...options } = JSON.parse(root.dataset.options), theme = () => document.documentElement.dataset.theme;
    const line = (root.timeline = new Timeline(root, { ...options, ...themes[theme()] }));
    window.uspDelayLoad(line.loaded);
    const color = (name) => { line.update({ ...options, ...themes[name] }); line.fillBar(); line.draw(); };
    new MutationObserver(() => color(theme())).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    let before = null;
    const isTooTall = () => line.height > TALLEST_ON_PAPER;
    window.addEventListener("beforeprint", async () => {
      if (!line.head) return;
      before = { folded: new Set(line.folded), only: line.only };
      root.style.width = `${PAPER_PX}px`;
      for (const [name, value] of [["text", "#1b1f24"], ["background", "#ffffff"]]) root.style.setProperty(`--st-${name}-color`, value);
      if (isTooTall()) { line.folded = new Set(["all"]); line.layout(); }
      if (isTooTall()) { // the straggler and the ranks next to it
        const ranks = line.ranks(), most = Math.floor((TALLEST_ON_PAPER * ranks.length) / line.height);
        const first = Math.min(Math.max(ranks.indexOf(options.focus) - Math.floor(most / 2), 0), ranks.length - most);
        line.only = ranks.slice(first, first + most); line.layout();
        root.dataset.printed = `${most} of ${ranks.length} ranks`;
      }
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
