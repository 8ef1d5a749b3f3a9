// The rank wall as a Streamlit component.

export default function (component) {
  const root = component.parentElement.querySelector(".usp-wall");
  if (!root.wall) root.wall = new Wall(root);
  root.wall.update(component.data, component.setStateValue);
  return () => { if (!root.isConnected && root.wall) { root.wall.destroy(); root.wall = null; } };
}
