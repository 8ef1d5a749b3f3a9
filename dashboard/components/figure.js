// Shows one Bokeh figure: BokehJS comes from this server, and what was drawn before is disposed of.
//
// With `data.picks`, a click returns the label of the clicked mark.

let loading = null, drawn = null;

function library(address) {
  loading ||= new Promise((done, failed) => {
    const tag = document.createElement("script");
    tag.src = address;
    tag.onload = () => done(window.Bokeh);
    tag.onerror = () => failed(new Error("the library that draws charts did not load"));
    document.head.appendChild(tag);
  });
  return loading;
}

// A dropped canvas keeps its pixels until the next collection, which small objects do not trigger.
function blank(root) {
  for (const element of root.querySelectorAll("*")) {
    if (element.shadowRoot) blank(element.shadowRoot);
    if (element instanceof HTMLCanvasElement) { element.width = 0; element.height = 0; }
  }
}

function dispose(host) {
  if (!host.documents) return;
  blank(host);
  for (const view of [...(host.views ? host.views.roots : [])]) view.remove();
  for (const document_ of host.documents) {
    document_.clear();
    const at = window.Bokeh.documents.indexOf(document_);
    if (at >= 0) window.Bokeh.documents.splice(at, 1);
  }
  host.views = host.documents = null;
}

// The source of the marks that a click picks goes by this name (PICKED in usp_prof/charts/frame.py).
function tellPicked(host) {
  const source = host.documents.map((document_) => document_.get_model_by_name("picked")).find(Boolean);
  if (!source) return;
  const { selected } = source;
  selected.on_change(selected.properties.indices, () => {
    const [index] = selected.indices;
    if (index !== undefined) host.report("picked", source.data.label[index]);
  });
}

export default function ({ data, parentElement, setStateValue }) {
  const host = parentElement.querySelector(".usp-figure");
  host.report = setStateValue;
  if (host.stamp === data.stamp) return () => { if (!host.isConnected) dispose(host); };
  host.stamp = data.stamp;
  host.style.minHeight = `${data.height || 0}px`;
  drawn = Promise.all([library(data.library), drawn]).then(async ([Bokeh]) => {
    if (host.stamp !== data.stamp) return;
    dispose(host);
    host.replaceChildren();
    const before = new Set(Bokeh.documents);
    try {
      host.views = await Bokeh.embed.embed_item(JSON.parse(data.item), host);
    } finally { host.documents = Bokeh.documents.filter((made) => !before.has(made)); }
    if (host.stamp !== data.stamp) { dispose(host); return; }
    if (data.picks) tellPicked(host);
    host.dataset.ready = data.stamp;
  }).catch((error) => { dispose(host); host.textContent = `the chart could not be drawn: ${error.message}`; });
  return () => { if (!host.isConnected) { dispose(host); host.stamp = null; } };
}
