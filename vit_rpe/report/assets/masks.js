// Masks of every layer and head over offsets, their change from the start, and their way.
//
// A table has a weight for each offset, query minus key: (2 n - 1) a side, the middle is offset 0.
// A mask over time has a plane for each offset in time, one of which is shown at once.

const CODES = 254; // as in vit_rpe/training/exhibits/masks.py

function weightsOf(layer, moment) {
  const codes = bytes(layer.codes[moment]);
  const size = codes.length / layer.heads;
  return layer.ranges[moment].map(([low, high], head) => {
    const weights = new Float64Array(size);
    for (let i = 0; i < size; i++) {
      const code = codes[head * size + i];
      weights[i] = code ? Math.exp(low + ((high - low) * (code - 1)) / CODES) : 0;
    }
    return { weights, low: Math.exp(low), high: Math.exp(high) };
  });
}

function plane(layer) {
  const { sides } = layer;
  const [rows, columns] = sides.length === 1 ? [1, sides[0]] : sides.slice(-2);
  return { rows, columns, times: sides.length === 3 ? sides[0] : 1 };
}

function masksSection(run) {
  const found = run.masks;
  if (!found) return null;
  const last = found.epochs.length - 1;
  const start = found.epochs[0] ? `epoch ${found.epochs[0]}` : "the start"; // an exhibit may be lost
  const times = plane(found.layers[0]).times;
  const state = { moment: last, view: "weights", time: (times - 1) / 2, chosen: null };
  const tables = found.layers.map((layer) => layer.codes.map((_, i) => weightsOf(layer, i)));
  const detail = el("div", { class: "card detail", id: "mask-detail", "aria-live": "polite" });
  const legend = el("div");
  const tiles = [];
  const grid = layersOf(found.layers, (layer, l, h) => {
    const canvas = el("canvas", { class: "heat" });
    const range = el("small");
    const node = el("button", { type: "button", class: "tile", "data-mask": `${l},${h}`,
      "aria-label": `${layer.name}, head ${h}`,
      onclick: () => { state.chosen = [l, h]; show(); } }, canvas, el("span", {}, `head ${h}`), range);
    tiles.push({ node, canvas, range, l, h });
    return node;
  });

  function values(l, h) {
    const layer = found.layers[l];
    const { rows, columns, times: planes } = plane(layer);
    const at = Math.min(state.time, planes - 1) * rows * columns;
    const cut = (table) => table.weights.subarray(at, at + rows * columns);
    const now = tables[l][state.moment][h];
    if (state.view === "weights") return { shown: cut(now), limit: now.high, rows, columns, now };
    const first = tables[l][0][h];
    const ratio = (table, other) => table.weights.map((w, i) => Math.log2(w / other.weights[i]));
    const all = ratio(now, first);
    let limit = 0;
    for (const x of all) if (Number.isFinite(x)) limit = Math.max(limit, Math.abs(x));
    return { shown: all.subarray(at, at + rows * columns), limit: Math.max(limit, 1e-3), rows, columns, now };
  }

  function paint(canvas, l, h, pixels) {
    const { shown, limit, rows, columns, now } = values(l, h);
    const color = state.view === "weights" ? (w) => heatColor(w, limit) : (x) => changeColor(x, limit);
    drawCells(canvas, shown, rows, columns, color, null, pixels);
    return { limit, rows, columns, now };
  }

  function show() {
    for (const tile of tiles) {
      const { limit, now } = paint(tile.canvas, tile.l, tile.h, 112);
      tile.range.textContent = state.view === "weights"
        ? `${num(now.low, 2)} – ${num(now.high, 2)}` : `up to ×${num(2 ** limit, 2)}`;
      tile.node.setAttribute("aria-pressed", String(String(state.chosen) === `${tile.l},${tile.h}`));
    }
    legend.replaceChildren(state.view === "weights"
      ? legendOfHeat("each head's largest; gray is exactly 0")
      : legendOfChange(`less than at ${start}`, "more"));
    if (state.chosen) showDetail(...state.chosen);
  }

  function showDetail(l, h) {
    const layer = found.layers[l];
    const canvas = el("canvas", { class: "heat large" });
    const { rows, columns, now } = paint(canvas, l, h, 360);
    const readout = el("p", { class: "readout hint" }, "Point at a cell to read it.");
    follow(canvas, (event) => {
      const [y, x] = cellAt(canvas, event, rows, columns);
      const value = canvas.weights[y * columns + x];
      const offset = [...(plane(layer).times > 1 ? [state.time - (plane(layer).times - 1) / 2] : []),
        y - (rows - 1) / 2, x - (columns - 1) / 2];
      readout.textContent = `offset (${offset.map(signed).join(", ")}): `
        + (state.view === "weights" ? `weight ${num(value)}` : `× ${num(2 ** value)} of ${start}`);
    }, () => {});
    const ranges = tables[l].map((moment) => moment[h]);
    detail.replaceChildren(
      el("h4", {}, `${layer.name}, head ${h}`),
      el("div", { class: "two" },
        el("div", {}, canvas, readout, el("p", { class: "quiet" },
          "An offset is query minus key: the middle is the query itself, and a cell to its right weighs a key to its left.")),
        el("div", {}, planes(l, h),
          last > 0 && [el("h5", {}, "Range through training"), rangeChart(found.epochs, ranges, state.moment)],
          el("p", { class: "quiet" }, `${last > 0 ? "Now" : "Weights"} from ${num(now.low)} to ${num(now.high)}.`))));
  }

  // All offsets in time of one head, side by side.
  function planes(l, h) {
    if (times === 1) return null;
    const kept = state.time;
    const shown = Array.from({ length: times }, (_, t) => {
      state.time = t;
      const canvas = el("canvas", { class: "heat" });
      paint(canvas, l, h, 56);
      return el("button", { type: "button", class: "tile", "aria-pressed": String(t === kept),
        onclick: () => { state.time = t; time.set(t); show(); } }, canvas, el("small", {}, signed(t - (times - 1) / 2)));
    });
    state.time = kept;
    return [el("h5", {}, "By offset in time"), el("div", { class: "strip" }, shown)];
  }

  const several = last > 0;
  const moment = several && slider("Epoch", last + 1, last,
    (i) => `${found.epochs[i]}`, (i) => { state.moment = i; show(); });
  const time = times > 1 && slider("Offset in time", times, state.time,
    (i) => signed(i - (times - 1) / 2), (i) => { state.time = i; show(); });
  const view = several && choices("What is shown", [["weights", "weights"], ["change", `change from ${start}`]],
    "weights", (value) => { state.view = value; show(); });
  const play = several && button("Play", () => {
    let at = 0;
    const tick = () => {
      state.moment = at;
      moment.set(at);
      show();
      if (at++ < last) setTimeout(tick, 350);
    };
    tick();
  });
  state.chosen = [0, 0];
  show();
  const words = found.source === "run" ? "Weights of offsets as the run kept them." : `Weights of offsets: ${found.source}.`;
  return section("masks", "Masks", el("p", { class: "quiet" }, words,
    " Each head has its own scale, from 0 to its largest weight; small ones are lifted by a square root."),
  el("div", { class: "bar" }, view, moment && moment.node, play, time && time.node), legend, detail, grid);
}

// The smallest and the largest weight of a head at each moment, on a logarithmic axis.
function rangeChart(epochs, ranges, moment) {
  const [width, height, left, bottom] = [320, 150, 46, 22];
  const lows = ranges.map((r) => Math.max(r.low, 1e-30));
  const highs = ranges.map((r) => Math.max(r.high, 1e-30));
  const least = Math.min(...lows), most = Math.max(...highs);
  const y = scale(least === most ? least / 2 : least, least === most ? most * 2 : most, height - bottom, 8, true);
  const x = scale(epochs[0], epochs[epochs.length - 1] || 1, left, width - 10);
  const line = (values) => values.map((v, i) => `${i ? "L" : "M"}${x(epochs[i]).toFixed(1)},${y(v).toFixed(1)}`).join("");
  const area = `${line(highs)}${[...epochs.keys()].reverse().map((i) => `L${x(epochs[i]).toFixed(1)},${y(lows[i]).toFixed(1)}`).join("")}Z`;
  return svg("svg", { class: "range", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": "Smallest and largest weight through training" },
  [least, most].map((v) => svg("g", { class: "tick" },
    svg("line", { x1: left, x2: width - 10, y1: y(v), y2: y(v) }),
    svg("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, num(v, 2)))),
  svg("path", { class: "band", d: area }),
  svg("path", { class: "edge", d: line(highs) }), svg("path", { class: "edge", d: line(lows) }),
  svg("line", { class: "cursor", x1: x(epochs[moment]), x2: x(epochs[moment]), y1: 8, y2: height - bottom }),
  [0, epochs.length - 1].map((i) => svg("text", { class: "tick", x: x(epochs[i]), y: height - 6,
    "text-anchor": i ? "end" : "start" }, `epoch ${epochs[i]}`)));
}
