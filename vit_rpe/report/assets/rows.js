// Rows of attention, computed from features: what vit_rpe/report/packing.py does, in the page.
//
//     M[i, j] K[i, j] / sum_j M[i, j] K[i, j],   K = q . k, or exp(q . k) for softmax

const STEPS = 65534;
const NOTHING = -5e8;
const EPS = 2 ** -23;
let HALVES = null;

// All numbers of float16, by their bits.
function halves() {
  if (HALVES) return HALVES;
  HALVES = new Float32Array(65536);
  for (let bits = 0; bits < 65536; bits++) {
    const exponent = (bits >> 10) & 31;
    const fraction = bits & 1023;
    const size = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024);
    HALVES[bits] = bits >> 15 ? -size : size;
  }
  return HALVES;
}

function unpackFeatures(packed, precision) {
  const raw = bytes(packed.codes);
  const scales = new Float32Array(bytes(packed.scales).buffer);
  const codes = precision === "half" ? new Uint16Array(raw.buffer) : raw;
  const size = codes.length / scales.length;
  const values = new Float32Array(codes.length);
  const half = precision === "half" ? halves() : null;
  for (let i = 0; i < codes.length; i++) {
    const unit = half ? half[codes[i]] : packed.signed ? (codes[i] - 128) / 127 : codes[i] / 255;
    values[i] = unit * scales[Math.floor(i / size)];
  }
  return values;
}

function unpackMask(mask) {
  return { ...mask, table: new Uint16Array(bytes(mask.codes).buffer) };
}

// Logarithms of a row of the mask, less the largest of its head.
function maskRow(mask, head, token, prefix) {
  const { grid, table, ranges } = mask;
  const cells = grid.reduce((a, b) => a * b, 1);
  const [low, high] = ranges[head];
  const row = new Float64Array(prefix + cells);
  const border = (x) => (x < NOTHING ? -Infinity : x - high);
  if (token < prefix) {
    for (let p = 0; p < prefix; p++) row[p] = border(mask.corner[head][token][p]);
    row.fill(border(mask.row[head][token]), prefix);
    return row;
  }
  for (let p = 0; p < prefix; p++) row[p] = border(mask.column[head][p]);
  const sides = grid.map((n) => 2 * n - 1);
  const size = sides.reduce((a, b) => a * b, 1);
  const query = unravel(token - prefix, grid);
  for (let key = 0; key < cells; key++) {
    const at = unravel(key, grid);
    let offset = 0;
    for (let axis = 0; axis < grid.length; axis++) {
      offset = offset * sides[axis] + query[axis] - at[axis] + grid[axis] - 1;
    }
    const code = table[head * size + offset];
    row[prefix + key] = code ? low + ((high - low) * (code - 1)) / STEPS - high : -Infinity;
  }
  return row;
}

function unravel(index, grid) {
  const at = new Array(grid.length);
  for (let axis = grid.length - 1; axis >= 0; axis--) {
    at[axis] = index % grid[axis];
    index = Math.floor(index / grid[axis]);
  }
  return at;
}

// The attention of one query, the mask only, and the kernel only; each over all tokens.
function attentionRow(layer, q, k, head, token, prefix) {
  const size = layer.features;
  const tokens = q.length / size / layer.heads;
  const logs = maskRow(layer.mask, head, token, prefix);
  const kernel = new Float64Array(tokens);
  const from = (head * tokens + token) * size;
  for (let j = 0; j < tokens; j++) {
    const to = (head * tokens + j) * size;
    let sum = 0;
    for (let m = 0; m < size; m++) sum += q[from + m] * k[to + m];
    kernel[j] = sum;
  }
  const mask = logs.map(Math.exp);
  if (layer.kernel === "softmax") {
    const logits = kernel.map((x, j) => x + logs[j]);
    return { attention: softmax(logits), mask, kernel: softmax(kernel) };
  }
  const weights = kernel.map((x, j) => x * mask[j]);
  let total = 0, absolute = 0;
  for (const w of weights) { total += w; absolute += Math.abs(w); }
  const empty = Math.abs(total) <= EPS * absolute;
  return { attention: weights.map((w) => (empty ? 0 : w / total)), mask, kernel };
}

function softmax(logits) {
  let largest = -Infinity;
  for (const x of logits) largest = Math.max(largest, x);
  if (largest === -Infinity) return logits.map(() => 0);
  const weights = logits.map((x) => Math.exp(x - largest));
  let total = 0;
  for (const w of weights) total += w;
  return weights.map((w) => w / total);
}
