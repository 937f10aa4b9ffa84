// Elements, numbers as text, and bytes. Text of the content only ever becomes text nodes.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value; // an attribute is against the page's rule
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

const el = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);

const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, text);
}

// A row of choices of which one is on; calls `choose` with its value.
function choices(label, options, chosen, choose) {
  const buttons = options.map(([value, text]) =>
    button(text, () => pick(value), { "aria-pressed": String(value === chosen) }));
  const pick = (value) => {
    buttons.forEach((each, i) => each.setAttribute("aria-pressed", String(options[i][0] === value)));
    choose(value);
  };
  return el("div", { class: "choices", role: "group", "aria-label": label }, buttons);
}

// A slider with its name and a text of its value.
function slider(label, count, value, text, choose) {
  const shown = el("output", {}, text(value));
  const input = el("input", {
    type: "range", min: 0, max: count - 1, value, "aria-label": label,
    oninput: () => { shown.textContent = text(+input.value); choose(+input.value); },
  });
  const set = (n) => { input.value = n; shown.textContent = text(n); };
  return { node: el("label", { class: "slider" }, el("span", {}, label), input, shown), set };
}

function section(id, title, ...children) {
  return el("section", { id }, el("h2", {}, title), children);
}

// Layers with a tile for each head; those of many heads have smaller ones, to fit into a row.
function layersOf(layers, tile) {
  return el("div", { class: "layers" }, layers.map((layer, l) => {
    const tiles = el("div", { class: "tiles" }, Array.from({ length: layer.heads }, (_, h) => tile(layer, l, h)));
    if (layer.heads > 8) tiles.style.setProperty("--tile", "5.3rem");
    return el("div", { class: "layer" }, el("h4", {}, layer.name), tiles);
  }));
}

// Follow a pointer: a mouse that moves and leaves, or a finger, whose last place is kept.
function follow(node, read, leave) {
  node.addEventListener("pointerdown", read);
  node.addEventListener("pointermove", read);
  node.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") leave(); });
}

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));

// A number with about `digits` significant ones, without a tail of zeros.
function num(x, digits = 4) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e6 || size < 1e-4) {
    const [front, power] = x.toExponential(Math.min(digits - 1, 3)).split("e");
    return minus(`${+front}e${power.replace("+", "")}`);
  }
  const rounded = +x.toPrecision(Math.max(digits, Math.ceil(Math.log10(size))));
  const text = rounded.toLocaleString("en-US", { maximumFractionDigits: 20 });
  return minus(text);
}

const minus = (text) => text.replace(/^-/, "−").replace("e-", "e−");
const percent = (x, digits = 1) => (x === null ? "–" : `${(100 * x).toFixed(digits)}\u00a0%`);
const signed = (n) => (n > 0 ? `+${n}` : minus(String(n)));

function bytes(text) {
  const raw = atob(text);
  const found = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) found[i] = raw.charCodeAt(i);
  return found;
}
