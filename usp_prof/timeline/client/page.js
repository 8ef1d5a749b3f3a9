// The timelines of a report: created when the page is read, redrawn when its theme changes.

window.addEventListener("DOMContentLoaded", () => {
  for (const root of document.querySelectorAll(".usp-timeline")) {
    const { themes, ...options } = JSON.parse(root.dataset.options), themed = () => ({ ...options, ...themes[document.documentElement.dataset.theme] });
    root.timeline = new Timeline(root, themed());
    new MutationObserver(() => { root.timeline.update(themed()); root.timeline.fillBar(); root.timeline.draw(); })
      .observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }
});
