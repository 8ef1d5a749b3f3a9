// Tiles from the server, and the format of times and names.

function decode(buffer, rows) {
  const length = new DataView(buffer).getUint32(0, true);
  const tile = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let at = 4 + length;
  tile.places = new Map(rows.map((row, i) => [row.label, i]));
  if (tile.rows) {
    const cells = tile.rows * tile.width;
    tile.raster = { category: new Uint8Array(buffer, at, cells), coverage: new Uint8Array(buffer, at + cells, cells) };
    return tile;
  }
  const n = tile.counts.reduce((a, b) => a + b, 0);
  const take = (Kind, size) => { const column = new Kind(buffer, at, n); at += n * size; return column; };
  tile.start = take(Float32Array, 4); tile.dur = take(Float32Array, 4); tile.event = take(Int32Array, 4);
  tile.name = take(Uint32Array, 4); tile.category = take(Uint8Array, 1); tile.coverage = take(Uint8Array, 1);
  tile.first = [0];
  for (const count of tile.counts) tile.first.push(tile.first[tile.first.length - 1] + count);
  return tile;
}

function rasterImage(tile, colors) {
  const image = new ImageData(tile.width, tile.rows), pixels = image.data;
  const table = colors.map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const { category, coverage } = tile.raster;
  for (let i = 0; i < category.length; i++) {
    if (!category[i]) continue;
    const color = table[category[i] - 1];
    pixels[4 * i] = color[0]; pixels[4 * i + 1] = color[1]; pixels[4 * i + 2] = color[2]; pixels[4 * i + 3] = 70 + (185 * coverage[i]) / 255;
  }
  return image;
}

function clipped(c, text, room) {
  if (c.measureText(text).width <= room) return text;
  let letters = Math.max(3, Math.floor((text.length * room) / c.measureText(text).width) - 1);
  return `${text.slice(0, letters)}…`;
}

function nice(rough) {
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  return [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough);
}

function duration(ns) {
  const size = Math.abs(ns);
  if (size >= 1e9) return `${(ns / 1e9).toFixed(3)} s`;
  if (size >= 1e6) return `${(ns / 1e6).toFixed(3)} ms`;
  if (size >= 1e3) return `${(ns / 1e3).toFixed(3)} µs`;
  return `${Math.round(ns)} ns`;
}

function tick(t, step) {
  const [unit, name] = step >= 1e8 ? [1e9, "s"] : step >= 1e5 ? [1e6, "ms"] : step >= 1e2 ? [1e3, "µs"] : [1, "ns"];
  return `${(t / unit).toFixed(Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9)))} ${name}`;
}

// The value of a counter: its share of the top of its row, such as "512 MiB" or "26.1 GB/s or more".
function heightOf(hit) {
  const [top, unit] = hit.lane.split(" ");
  const share = hit.coverage / 255, value = share * Number(top.replaceAll(",", ""));
  const text = share === 1 ? hit.lane : `about ${unit === "kernels" ? Math.round(value) : Number(value.toPrecision(3))} ${unit}`;
  return `${hit.name}: ${text}\ntop of the row: ${hit.lane} · ${hit.rank_label} · ${duration(hit.dur_ns)} at ${duration(hit.start_ns)}`;
}

// The short name of a kernel or op: without arguments, template parameters and the prefix of its library.
function plainName(text) {
  const name = text.replaceAll("(anonymous namespace)::", "").replace(/^void /, "").replace(/[(<].*$/s, "").replace(/^.*::/s, "").replace(/^(ncclDevKernel_|ncclKernel_|nccl:|gloo:|aten::|waiting for )/, "");
  return name.replace(/^(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)_.*$/, "$1") || text;
}

// The name of a row: its track, and its stream if the trace names one.
function rowName(row) {
  const stream = row.lane.match(/stream.*$/)?.[0];
  return row.kind === "device" && stream ? `${row.base} · ${stream}` : baseOf(row);
}

function arrow(c, from, to) {
  if (!from || !to) return;
  const angle = Math.atan2(to[1] - from[1], to[0] - from[0]);
  c.beginPath(); c.moveTo(...from); c.lineTo(...to); c.stroke();
  c.beginPath(); c.moveTo(...to);
  for (const turn of [-0.4, 0.4]) c.lineTo(to[0] - 8 * Math.cos(angle + turn), to[1] - 8 * Math.sin(angle + turn));
  c.fill();
}
