// Heat maps: dark is large, in both themes, as in all pictures of the project.

const LEVELS = 256;
let HEAT = [];
const LESS = [[44, 96, 158], [146, 185, 219]];
const MORE = [[233, 176, 124], [172, 83, 20]];
const PAPER = [247, 245, 241];
const ABSENT = [217, 217, 217];

function rgb(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

const between = (a, b, t) => a.map((x, i) => x + (b[i] - x) * t);

// Colors at equal distances, by interpolation of those in `anchors`.
function ramp(anchors, count = LEVELS) {
  return Array.from({ length: count }, (_, i) => {
    const at = (i / (count - 1)) * (anchors.length - 1);
    const low = Math.min(Math.floor(at), anchors.length - 2);
    return between(anchors[low], anchors[low + 1], at - low);
  });
}

const CHANGE = ramp([...LESS, PAPER, ...MORE]);
const level = (t) => Math.round(clamp(t, 0, 1) * (LEVELS - 1));

// Small weights stay visible beside large ones: the square root, as in figures of masks.
const heatColor = (value, largest) =>
  value === 0 ? ABSENT : HEAT[level(largest > 0 ? Math.sqrt(value / largest) : 0)];
const changeColor = (value, limit) =>
  Number.isFinite(value) ? CHANGE[level(0.5 + value / (2 * (limit || 1)))] : ABSENT;

// Draw values (rows x columns) with a color for each; `mark` is a cell with a frame.
function drawCells(canvas, values, rows, columns, color, mark = null, pixels = 160) {
  const zoom = Math.max(1, Math.round(pixels / Math.max(rows, columns)));
  const small = document.createElement("canvas");
  small.width = columns;
  small.height = rows;
  const data = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    const [r, g, b] = color(values[i]);
    data.data.set([r, g, b, 255], 4 * i);
  }
  small.getContext("2d").putImageData(data, 0, 0);
  canvas.width = columns * zoom;
  canvas.height = rows * zoom;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
  if (mark) {
    const width = clamp(zoom / 8, 2, 5);
    context.lineWidth = width;
    context.strokeStyle = "#00a5cf";
    const [y, x] = mark;
    context.strokeRect(x * zoom + width / 2, y * zoom + width / 2, zoom - width, zoom - width);
  }
  canvas.weights = values;
}

// The cell of a canvas that an event is over, as [row, column].
function cellAt(canvas, event, rows, columns) {
  const box = canvas.getBoundingClientRect();
  const at = (position, start, length, count) =>
    clamp(Math.floor(((position - start) / length) * count), 0, count - 1);
  return [
    at(event.clientY, box.top, box.height, rows),
    at(event.clientX, box.left, box.width, columns),
  ];
}

function largestOf(values) {
  let largest = 0;
  for (const value of values) if (value > largest && Number.isFinite(value)) largest = value;
  return largest;
}

function legendOfHeat(text) {
  const colors = [0, 0.1, 0.3, 0.6, 1].map((t) => `rgb(${HEAT[level(Math.sqrt(t))].join()})`);
  const bar = el("span", { class: "ramp" });
  bar.style.background = `linear-gradient(90deg, ${colors.join()})`;
  return el("p", { class: "legend" }, el("span", {}, "small"), bar, el("span", {}, text));
}

function legendOfChange(less, more) {
  const bar = el("span", { class: "ramp" });
  const colors = [0, 0.25, 0.5, 0.75, 1].map((t) => `rgb(${CHANGE[level(t)].join()})`);
  bar.style.background = `linear-gradient(90deg, ${colors.join()})`;
  return el("p", { class: "legend" }, el("span", {}, less), bar, el("span", {}, more));
}
