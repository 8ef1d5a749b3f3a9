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

  // On paper a copy of each chart's canvas stands for it, as wide as the sheet allows: charts keep the width at which they
  // were drawn, and Chromium shrinks the whole document until the widest of them fits.
  const allIn = (root) => [...root.querySelectorAll("*")].flatMap((item) => [item, ...(item.shadowRoot ? allIn(item.shadowRoot) : [])]);
  const isText = (item) => !item.childElementCount && item.textContent.trim() && !["STYLE", "SCRIPT"].includes(item.tagName);

  function copyForPaper(chart) {
    const items = allIn(chart).filter((item) => item.getBoundingClientRect().width);
    const canvases = items.filter((item) => item.tagName === "CANVAS" && item.width && item.height);
    if (!canvases.length) return;
    const widest = canvases.reduce((most, canvas) => (canvas.width > most.width ? canvas : most));
    const copy = Object.assign(document.createElement("canvas"), { width: widest.width, height: widest.height });
    const paint = copy.getContext("2d"), whole = widest.getBoundingClientRect(), scale = widest.width / whole.width;
    const placeOf = (item) => {
      const place = item.getBoundingClientRect();
      return [place.left - whole.left, place.top - whole.top, place.width, place.height];
    };
    paint.scale(scale, scale);
    for (const canvas of canvases) paint.drawImage(canvas, ...placeOf(canvas)); // the plot's layers, a legend's swatches
    for (const item of items.filter(isText)) { // a legend's labels are elements
      const [left, top, , height] = placeOf(item), style = getComputedStyle(item);
      Object.assign(paint, { font: style.font, fillStyle: style.color, textBaseline: "middle" });
      paint.fillText(item.textContent, left, top + height / 2);
    }
    copy.className = "paper";
    copy.style.width = `${(100 * whole.width) / chart.clientWidth}%`;
    chart.append(copy);
  }

  window.addEventListener("beforeprint", () => { for (const chart of document.querySelectorAll(".chart")) copyForPaper(chart); });
  window.addEventListener("afterprint", () => { for (const copy of document.querySelectorAll(".paper")) copy.remove(); });
  show(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
})();
