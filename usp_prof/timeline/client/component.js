// The timeline as a Streamlit component: created once per page, updated when the page reruns.

export default function (component) {
  const { data, parentElement } = component, root = parentElement.querySelector(".usp-timeline");
  const kept = root.timeline && root.timeline.source === data.source && root.timeline.data.play === data.play;
  if (kept) root.timeline.update(data);
  else { root.timeline?.destroy(); root.timeline = new Timeline(root, data); }
  return () => { if (!root.isConnected && root.timeline) { root.timeline.destroy(); root.timeline = null; } };
}
