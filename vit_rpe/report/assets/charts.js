// Line charts with the exact values under the pointer.

const CHARTS = {
  loss: { title: "Loss" },
  accuracy: { title: "Accuracy (top-1)", unit: " %" },
  lr: { title: "Learning rate" },
  grad_norm: { title: "Gradient norm", log: true },
  throughput: { title: "Samples per second", zero: true },
  data_wait: { title: "Time spent waiting for data", unit: " %", zero: true },
  memory: { title: "Peak memory", unit: " MB", zero: true },
};
const DIGITS = 6; // as vit_rpe/report/curves.py writes them
const DASHES = { training: null, weights: null, average: "5 3" };
const EDGE = { left: 54, right: 16, top: 10, bottom: 26 };
const HEIGHT = 210;

function curvesSection(runs) {
  const drawn = runs.filter((run) => run.curves && Object.keys(run.curves).length);
  if (!drawn.length) return null;
  const state = { axis: "step" };
  const charts = Object.keys(CHARTS)
    .filter((name) => drawn.some((run) => run.curves[name]))
    .map((name) => chart(name, drawn, runs, state));
  const axes = choices("Horizontal axis", [["step", "steps"], ["epoch", "epochs"]], "step", (axis) => {
    state.axis = axis;
    charts.forEach((each) => each.redraw());
  });
  const thinned = drawn.some((run) =>
    Object.values(run.curves).flat().some((curve) => curve.of > curve.x.length));
  const note = thinned && el("p", { class: "note" },
    "Long curves are thinned: of each stretch the lowest and the highest point are shown.");
  return section("curves", "Curves", el("div", { class: "bar" }, axes), note,
    el("div", { class: "charts" }, charts.map((each) => each.node)));
}

function chart(name, drawn, runs, state) {
  const about = CHARTS[name];
  const lines = drawn.flatMap((run) => (run.curves[name] || []).map((curve) => ({
    ...curve,
    run,
    dash: DASHES[curve.name],
    faint: name === "loss" && curve.name === "training",
    color: lineColor(runs, run, curve.name),
  })));
  const holder = el("div", { class: "plot", tabindex: 0, role: "img",
    "aria-label": `${about.title}; arrow keys read the values` });
  const tip = el("div", { class: "tip", hidden: true });
  const names = runs.length > 1
    ? (line) => `${line.run.name}, ${line.name}` : (line) => line.name;
  const node = el("figure", { class: "card", "data-chart": name },
    el("figcaption", {}, about.title, about.unit ? el("small", {}, about.unit.trim()) : null),
    holder, keyOf(lines, runs));
  let plot = null;
  const redraw = () => {
    plot = draw(holder, lines, about, state, runs);
    holder.append(tip);
    tip.hidden = true;
  };
  const read = (x) => plot && readAt(plot, x, tip, names, about, state);
  const hide = () => {
    tip.hidden = true;
    if (!plot) return;
    plot.cursor.setAttribute("opacity", 0);
    plot.dots.replaceChildren();
  };
  follow(holder, (event) => read(event.clientX - holder.getBoundingClientRect().left), hide);
  holder.addEventListener("blur", hide);
  holder.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !plot) return;
    event.preventDefault();
    read(clamp((plot.at ?? EDGE.left) + step * 6, EDGE.left, plot.width - EDGE.right));
  });
  new ResizeObserver(redraw).observe(holder);
  return { node, redraw };
}

// What colors and dashes mean: lines of one run by name; of several the runs, then the kinds.
function keyOf(lines, runs) {
  const item = (line, name) => el("li", {}, swatch(line), name);
  if (runs.length === 1) {
    return lines.length > 1 ? el("ul", { class: "key" }, lines.map((line) => item(line, line.name))) : null;
  }
  const drawn = runs.filter((run) => lines.some((line) => line.run === run));
  const kinds = [...new Map(lines.map((line) => [line.name, line])).values()];
  return el("ul", { class: "key" },
    drawn.map((run) => item({ color: lineColor(runs, run) }, run.name)),
    kinds.length > 1 ? kinds.map((line) => item({ ...line, color: "var(--quiet)" }, line.name)) : null);
}

// One run: blue for training and weights, orange for the average. Several: a color for each.
function lineColor(runs, run, name) {
  if (runs.length > 1) return `var(--series-${runs.indexOf(run) % 7})`;
  return { training: "var(--series-6)", weights: "var(--series-0)", average: "var(--series-1)" }[name];
}

function swatch(line) {
  return svg("svg", { class: "swatch", width: 22, height: 8, "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 21, y1: 4, y2: 4, style: `stroke:${line.color}`,
      "stroke-dasharray": line.dash, "stroke-width": 2, opacity: line.faint ? 0.6 : 1 }));
}

function position(line, x, state) {
  const steps = line.run.stepsPerEpoch;
  return state.axis === "epoch" && steps ? x / steps : x;
}

function draw(holder, lines, about, state, runs) {
  const width = Math.max(240, holder.clientWidth);
  const xs = lines.flatMap((line) => [line.x[0], line.x[line.x.length - 1]].map(
    (x) => position(line, x, state)));
  const ys = lines.flatMap((line) => line.y);
  const positive = ys.every((y) => y > 0);
  const log = about.log && positive && Math.max(...ys) > 30 * Math.min(...ys);
  const xScale = scale(Math.min(...xs), Math.max(...xs), EDGE.left, width - EDGE.right);
  let low = Math.min(...ys), high = Math.max(...ys);
  if (about.zero) low = Math.min(0, low);
  const pad = log ? 0 : (high - low || Math.abs(high) || 1) * 0.05;
  const yScale = scale(about.zero && low === 0 ? 0 : low - pad, high + pad,
    HEIGHT - EDGE.bottom, EDGE.top, log);
  const cursor = svg("line", { class: "cursor", y1: EDGE.top, y2: HEIGHT - EDGE.bottom, opacity: 0 });
  const dots = svg("g", {});
  const drawing = svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` },
    ticks(yScale, 5).map((y) => svg("g", { class: "tick" },
      svg("line", { x1: EDGE.left, x2: width - EDGE.right, y1: yScale(y), y2: yScale(y) }),
      svg("text", { x: EDGE.left - 8, y: yScale(y) + 4, "text-anchor": "end" }, num(y, 3)))),
    ticks(xScale, Math.round(width / 70)).map((x) => svg("text",
      { class: "tick", x: xScale(x), y: HEIGHT - 8, "text-anchor": "middle" }, num(x, 6))),
    lines.map((line) => svg("path", {
      d: path(line, xScale, yScale, state), fill: "none", style: `stroke:${line.color}`,
      "stroke-width": line.x.length === 1 ? 6 : line.faint ? 1.25 : 1.75, "stroke-linecap": line.x.length === 1 && "round", opacity: line.faint ? 0.55 : 1,
      "stroke-dasharray": line.dash, "stroke-linejoin": "round" })),
    about.title === "Loss" ? skippedMarks(runs, xScale, state) : null,
    cursor, dots);
  holder.replaceChildren(drawing);
  return { lines, xScale, yScale, cursor, dots, width, at: null };
}

function skippedMarks(runs, xScale, state) {
  return runs.flatMap((run) => (run.skipped || []).map((step) => {
    const x = xScale(position({ run }, step, state));
    return svg("path", { class: "skipped", d: `M${x - 3},${EDGE.top}h6l-3,6z` },
      svg("title", {}, `step ${step} was skipped`));
  }));
}

function path(line, xScale, yScale, state) {
  if (line.x.length === 1) { // a line of no length: its round ends are a dot
    return `M${xScale(position(line, line.x[0], state))},${yScale(line.y[0])}h0`;
  }
  return line.x.map((x, i) =>
    `${i ? "L" : "M"}${xScale(position(line, x, state)).toFixed(1)},${yScale(line.y[i]).toFixed(1)}`
  ).join("");
}

function scale(low, high, from, to, log = false) {
  const way = log ? Math.log : (x) => x;
  const [a, b] = [way(low), way(high)];
  const span = b - a || 1;
  const f = (x) => from + ((way(x) - a) / span) * (to - from);
  return Object.assign(f, { low, high, log });
}

function ticks(f, count) {
  if (f.log) {
    const found = [];
    for (let e = Math.floor(Math.log10(f.low)); e <= Math.ceil(Math.log10(f.high)); e++) {
      for (const m of [1, 3]) if (m * 10 ** e >= f.low && m * 10 ** e <= f.high) found.push(m * 10 ** e);
    }
    return found;
  }
  const raw = (f.high - f.low) / count || 1;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = size * ([1, 2, 2.5, 5, 10].find((m) => m * size >= raw * 0.8) || 10);
  const found = [];
  for (let i = Math.ceil(f.low / step); i * step <= f.high + 1e-9 * step; i++) found.push(+(i * step).toPrecision(12));
  return found;
}

// Show the nearest point of every line, with the numbers as they were recorded.
function readAt(plot, pixel, tip, names, about, state) {
  plot.at = pixel;
  const near = plot.lines.map((line) => {
    let best = 0;
    line.x.forEach((x, i) => {
      const far = (j) => Math.abs(plot.xScale(position(line, line.x[j], state)) - pixel);
      if (far(i) < far(best)) best = i;
    });
    return [line, best];
  });
  const center = near.reduce((a, b) => {
    const far = ([line, i]) => Math.abs(plot.xScale(position(line, line.x[i], state)) - pixel);
    return far(b) < far(a) ? b : a;
  });
  const x = plot.xScale(position(center[0], center[0].x[center[1]], state));
  plot.cursor.setAttribute("x1", x);
  plot.cursor.setAttribute("x2", x);
  plot.cursor.setAttribute("opacity", 1);
  plot.dots.replaceChildren(...near.map(([line, i]) => svg("circle", { r: 3, style: `fill:${line.color}`,
    cx: plot.xScale(position(line, line.x[i], state)), cy: plot.yScale(line.y[i]) })));
  tip.replaceChildren(...near.map(([line, i]) => el("div", {},
    swatch(line), `${names(line)} `, el("b", {}, num(line.y[i], DIGITS) + (about.unit || "")),
    el("small", {}, ` step ${line.x[i].toLocaleString("en-US")}`))));
  tip.hidden = false;
  const side = clamp(x + 12, 0, Math.max(0, plot.width - tip.offsetWidth - 4));
  tip.style.left = `${x + 12 + tip.offsetWidth > plot.width ? Math.max(0, x - tip.offsetWidth - 12) : side}px`;
  // where the points are not
  const low = plot.yScale(center[0].y[center[1]]) > HEIGHT / 2;
  tip.style.top = `${low ? EDGE.top : HEIGHT - EDGE.bottom - tip.offsetHeight - 4}px`;
}
