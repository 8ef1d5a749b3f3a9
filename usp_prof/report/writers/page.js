"use strict";
// Charts are drawn in the light theme; each has a list of places and values that differ in the dark theme.
(() => {
  const root = document.documentElement;
  const views = new Map(); // Bokeh's view of each chart that is drawn
  const read = (id) => JSON.parse(document.getElementById(id).textContent);

  function patched(item, patch) {
    for (const [path, value] of patch) {
      let place = item;
      for (const key of path.slice(0, -1)) place = place[key];
      place[path[path.length - 1]] = value;
    }
    return item;
  }

  async function draw(target) {
    const id = target.dataset.chart;
    const item = read("chart-" + id);
    const { doc } = root.dataset.theme === "dark" ? patched(item, read("dark-" + id)) : item;
    target.replaceChildren();
    target.dataset.drawn = root.dataset.theme;
    // Not `embed_item`, which waits for another turn of the browser: while it prints there is none.
    const drawn = await Bokeh.embed.add_document_standalone(Bokeh.Document.from_json(doc), target);
    views.set(target, drawn.roots[0]);
  }

  // Charts far down the page are drawn when they come near, so that a long report opens at once.
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const target = entry.target;
      if (entry.isIntersecting && target.dataset.drawn !== root.dataset.theme) draw(target);
    }
  }, { rootMargin: "600px" });

  function show(theme) {
    root.dataset.theme = theme;
    document.getElementById("theme").textContent = theme === "dark" ? "light" : "dark";
    for (const swatch of document.querySelectorAll("[data-light]")) {
      swatch.style.backgroundColor = theme === "dark" ? swatch.dataset.dark : swatch.dataset.light;
    }
    for (const target of document.querySelectorAll(".chart")) { near.unobserve(target); near.observe(target); }
  }

  document.getElementById("theme").addEventListener("click", () => show(root.dataset.theme === "dark" ? "light" : "dark"));
  // All charts are drawn while the reader reads the first ones: printing and scrolling find them there.
  const idle = window.requestIdleCallback || ((work) => setTimeout(work, 50));
  async function drawRest() {
    const target = [...document.querySelectorAll(".chart")].find((each) => !each.dataset.drawn);
    if (!target) return;
    await draw(target);
    idle(drawRest);
  }
  window.addEventListener("load", () => idle(drawRest));

  // On paper each chart is replaced by an image as wide as the page: charts keep their width on screen, and Chromium
  // shrinks the whole document until the widest one fits. Bokeh's own export draws the image.
  function copyForPaper(chart) {
    const view = views.get(chart);
    const drawn = view.export("png").canvas, { width, height } = drawn;
    const copy = Object.assign(document.createElement("canvas"), { className: "paper", width, height });
    copy.getContext("2d").drawImage(drawn, 0, 0); // printed itself, it would make the whole sheet a masked group
    copy.style.width = `${(100 * view.bbox.width) / chart.clientWidth}%`;
    chart.append(copy);
  }

  // The browser waits for promises that are kept in this turn, and for nothing else: a chart that is not drawn is drawn now.
  window.addEventListener("beforeprint", async () => {
    for (const chart of document.querySelectorAll(".chart")) {
      if (!views.has(chart)) await draw(chart);
      copyForPaper(chart);
    }
  });
  window.addEventListener("afterprint", () => { for (const copy of document.querySelectorAll(".paper")) copy.remove(); });
  show(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
})();
