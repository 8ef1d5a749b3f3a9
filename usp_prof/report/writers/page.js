"use strict";
// Charts are drawn in the light theme; each has a list of places and values that differ in the dark theme.
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

  // BokehJS is packed, and unpacked after the first paint.
  let library;
  async function unpackLibrary() {
    const packed = Uint8Array.from(atob(document.getElementById("bokeh").textContent), (letter) => letter.charCodeAt(0));
    const textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    document.head.append(Object.assign(document.createElement("script"), { textContent }));
  }
  const loadLibrary = () => (library ??= unpackLibrary());

  // A page cannot unpack while it prints, so the load event, after which it may print, waits: an open document in a
  // frame delays it. The first paint does not wait.
  window.uspDelayLoad = (unpacked) => {
    const frame = document.body.appendChild(Object.assign(document.createElement("iframe"), { hidden: true }));
    frame.contentDocument.open();
    unpacked.finally(() => { frame.contentDocument.close(); frame.remove(); });
  };

  // Charts outside folded sections.
  const shownCharts = () => [...document.querySelectorAll(".chart")].filter((chart) => !chart.closest("details:not([open])"));
  if (shownCharts().length) window.uspDelayLoad(loadLibrary());

  async function draw(id, target, theme) {
    if (!window.Bokeh) await loadLibrary();
    const item = read("chart-" + id);
    const { doc } = theme === "dark" ? patched(item, read("dark-" + id)) : item;
    target.replaceChildren();
    target.dataset.drawn = theme;
    // Not `embed_item`, which waits for another turn of the browser: while it prints there is none.
    const drawn = await Bokeh.embed.add_document_standalone(Bokeh.Document.from_json(doc), target);
    return drawn.roots[0];
  }

  // A chart is drawn when it comes near: a folded one when its section is opened.
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const target = entry.target;
      if (entry.isIntersecting && target.dataset.drawn !== root.dataset.theme) draw(target.dataset.chart, target, root.dataset.theme);
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
  const sections = [...document.querySelectorAll("details")];
  function openLinked() { // a link to a section opens it
    const section = document.getElementById(location.hash.slice(1));
    if (section?.matches("details")) section.open = true;
  }
  window.addEventListener("hashchange", openLinked); openLinked();
  const fold = document.getElementById("fold");
  fold.addEventListener("click", () => {
    const open = sections.some((section) => !section.open);
    for (const section of sections) section.open = open;
    fold.textContent = open ? "close all sections" : "open all sections";
  });

  // On paper each chart is replaced by an image as wide as the page. It is drawn again, on a stage so narrow that its
  // text stays as large as that of tables. Bokeh's own export draws the image.
  async function copyForPaper(chart) {
    const stage = document.body.appendChild(Object.assign(document.createElement("div"), { className: "stage" }));
    const view = await draw(chart.dataset.chart, stage, "light");
    const drawn = view.export("png").canvas, { width, height } = drawn;
    const copy = Object.assign(document.createElement("canvas"), { className: "paper", width, height });
    copy.getContext("2d").drawImage(drawn, 0, 0); // printed itself, it would make the whole sheet a masked group
    copy.style.width = `${(100 * view.bbox.width) / stage.clientWidth}%`;
    chart.after(copy);
    view.model.document.clear();
    stage.remove();
  }

  // Folded sections are not printed. The browser waits for promises of this turn and for nothing after it.
  window.addEventListener("beforeprint", async () => { for (const chart of shownCharts()) await copyForPaper(chart); });
  window.addEventListener("afterprint", () => { for (const copy of document.querySelectorAll(".paper")) copy.remove(); });
  show(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
})();
