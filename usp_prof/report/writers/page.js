"use strict";
// Charts are drawn in the light theme; what differs in the dark one travels beside each as a list of places and values.
(() => {
  const root = document.documentElement;
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
    target.replaceChildren();
    await Bokeh.embed.embed_item(root.dataset.theme === "dark" ? patched(item, read("dark-" + id)) : item, target);
    target.dataset.drawn = root.dataset.theme;
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
  // A browser prints what is there and waits for nobody: all charts are drawn while the reader reads the first ones.
  const idle = window.requestIdleCallback || ((work) => setTimeout(work, 50));
  async function drawRest() {
    const target = [...document.querySelectorAll(".chart")].find((each) => !each.dataset.drawn);
    if (!target) return;
    await draw(target);
    idle(drawRest);
  }
  window.addEventListener("load", () => idle(drawRest));

  // Charts keep the width at which they were drawn; on paper they are scaled to the narrower of A4 and letter.
  const PAPER_PX = 690;
  window.addEventListener("beforeprint", () => {
    const wide = [...document.querySelectorAll(".chart")].map((chart) => [chart, chart.offsetWidth]);
    for (const [chart, width] of wide) { chart.style.width = `${width}px`; chart.style.zoom = Math.min(1, PAPER_PX / width); }
  });
  window.addEventListener("afterprint", () => {
    for (const chart of document.querySelectorAll(".chart")) chart.style.width = chart.style.zoom = "";
  });
  show(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
})();
