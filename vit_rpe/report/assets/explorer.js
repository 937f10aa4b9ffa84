// The attention explorer: click a patch, and see what it takes from all others, in every head.

const VIEWS = { attention: "attention", mask: "mask alone", kernel: "kernel alone" };

function explorerSection(run) {
  const found = run.explorer;
  if (!found) return null;
  const { layers, samples, prefix } = found;
  const grid = layers[0].mask.grid;
  const [times, rows, columns] = grid.length === 3 ? grid : [1, ...grid];
  const middle = Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const state = { sample: 0, token: prefix + middle, view: "attention", head: [0, 0], time: 0, frame: 0 };
  const features = new Map();
  const masks = layers.map((layer) => ({ ...layer, mask: unpackMask(layer.mask) }));

  function featuresOf(sample, l) {
    const key = `${sample},${l}`;
    if (!features.has(key)) {
      const { q, k } = samples[sample].layers[l];
      features.set(key, [unpackFeatures(q, found.precision), unpackFeatures(k, found.precision)]);
    }
    return features.get(key);
  }

  const thumbs = el("div", { class: "thumbs", role: "group", "aria-label": "Samples" },
    samples.map((sample, i) => el("button", { type: "button", onclick: () => { state.sample = i; show(); } },
      el("img", { src: sample.pictures[0], alt: `sample ${sample.key}` }))));
  const picture = el("img", { alt: "", class: "subject" });
  const marker = el("div", { class: "marker" });
  const hover = el("div", { class: "marker faint", hidden: true });
  const stage = el("div", { class: "stage", tabindex: 0, role: "application", id: "stage",
    "aria-label": "Patches of the sample: click one, or move with the arrow keys" }, picture, hover, marker);
  const caption = el("p", { class: "caption" });
  const choose = (token) => { state.token = token; show(); };
  const place = (node, y, x) => {
    node.style.top = `${(100 * y) / rows}%`;
    node.style.left = `${(100 * x) / columns}%`;
    node.style.height = `${100 / rows}%`;
    node.style.width = `${100 / columns}%`;
  };
  stage.addEventListener("click", (event) => {
    const [y, x] = cellAt(stage, event, rows, columns);
    choose(prefix + (state.time * rows + y) * columns + x);
  });
  stage.addEventListener("pointermove", (event) => {
    place(hover, ...cellAt(stage, event, rows, columns));
    hover.hidden = false;
  });
  stage.addEventListener("pointerleave", () => { hover.hidden = true; });
  stage.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move || state.token < prefix) return;
    event.preventDefault();
    const [y, x] = cellOf(state.token);
    choose(prefix + (state.time * rows + clamp(y + move[0], 0, rows - 1)) * columns + clamp(x + move[1], 0, columns - 1));
  });
  const cellOf = (token) => unravel((token - prefix) % (rows * columns), [rows, columns]);

  const prefixes = prefix ? el("div", { class: "choices" }, Array.from({ length: prefix }, (_, p) =>
    button(p ? `register token ${p}` : "class token", () => choose(p), { "data-prefix": p }))) : null;
  const timeSlider = times > 1 && slider("Query in slice", times, 0, (t) => `${t + 1} of ${times}`, (t) => {
    const at = state.token < prefix ? middle : (state.token - prefix) % (rows * columns);
    state.time = t;
    state.frame = t;
    frameSlider.set(t);
    choose(prefix + t * rows * columns + at);
  });
  const frameSlider = times > 1 && slider("Keys of slice", times, 0, (t) => `${t + 1} of ${times}`, (t) => {
    state.frame = t;
    show();
  });

  const big = Object.entries(VIEWS).map(([view, name]) => {
    const canvas = el("canvas", { class: "heat large", "data-view": view });
    const readout = el("p", { class: "readout" });
    follow(canvas, (event) => {
      const [y, x] = cellAt(canvas, event, rows, columns);
      readout.textContent = `(${y}, ${x}): ${num(canvas.weights[y * columns + x])}`;
    }, () => { readout.textContent = canvas.dataset.sum; });
    return { view, canvas, readout, node: el("figure", {}, el("figcaption", {}, name), canvas, readout) };
  });
  const strip = times > 1 ? el("div", { class: "strip" }) : null;
  const title = el("h4");
  const tiles = [];
  const overview = layersOf(layers, (layer, l, h) => {
    const canvas = el("canvas", { class: "heat" });
    const share = el("small");
    const node = el("button", { type: "button", class: "tile", "data-row": `${l},${h}`,
      "aria-label": `${layer.name}, head ${h}`, onclick: () => { state.head = [l, h]; show(); } },
    canvas, el("span", {}, `head ${h}`), share);
    tiles.push({ node, canvas, share, l, h });
    return node;
  });

  function paint(canvas, row, view, pixels, frame = state.frame) {
    const shown = row[view].subarray(prefix + frame * rows * columns, prefix + (frame + 1) * rows * columns);
    const largest = largestOf(row[view].subarray(prefix)) || 1;
    const own = state.token >= prefix && frame === state.time;
    drawCells(canvas, shown, rows, columns, (w) => heatColor(w, largest), own ? cellOf(state.token) : null, pixels);
    canvas.row = row[view];
    return largest;
  }

  function show() {
    const sample = samples[state.sample];
    const rowsOf = layers.map((layer, l) => {
      const [q, k] = featuresOf(state.sample, l);
      return Array.from({ length: layer.heads }, (_, h) => attentionRow(masks[l], q, k, h, state.token, prefix));
    });
    picture.src = sample.pictures[Math.min(state.time, sample.pictures.length - 1)];
    marker.hidden = state.token < prefix;
    if (state.token >= prefix) place(marker, ...cellOf(state.token));
    $$("button", thumbs).forEach((each, i) => each.setAttribute("aria-pressed", String(i === state.sample)));
    if (prefixes) $$("button", prefixes).forEach((each, p) => each.setAttribute("aria-pressed", String(p === state.token)));
    const name = (c) => run.classes[c] ?? String(c);
    caption.replaceChildren(el("b", { class: sample.label === sample.predicted ? "right" : "wrong" }, name(sample.predicted)),
      ` ${percent(sample.confidence, 0)}, true: ${name(sample.label)} `, el("small", {}, sample.key));
    for (const tile of tiles) {
      const row = rowsOf[tile.l][tile.h];
      const largest = paint(tile.canvas, row, state.view, 84);
      tile.share.textContent = state.view === "attention" ? `max ${percent(largest)}` : `max ${num(largest, 2)}`;
      tile.node.setAttribute("aria-pressed", String(String(state.head) === `${tile.l},${tile.h}`));
    }
    const [l, h] = state.head;
    const row = rowsOf[l][h];
    title.textContent = `${layers[l].name}, head ${h}: what ${queryName()} takes`;
    for (const { view, canvas, readout } of big) {
      const largest = paint(canvas, row, view, 240);
      const first = row[view].subarray(0, prefix);
      const border = prefix && view === "attention" ? `, class token ${percent(first[0])}` : "";
      canvas.dataset.sum = view === "attention" ? `largest ${percent(largest)}${border}` : `largest ${num(largest, 3)}`;
      readout.textContent = canvas.dataset.sum;
    }
    if (strip) {
      strip.replaceChildren(...Array.from({ length: times }, (_, t) => {
        const canvas = el("canvas", { class: "heat" });
        paint(canvas, row, "attention", 72, t);
        return el("button", { type: "button", "aria-pressed": String(t === state.frame), class: "tile",
          onclick: () => { state.frame = t; frameSlider.set(t); show(); } }, canvas, el("small", {}, `slice ${t + 1}`));
      }));
    }
  }

  function queryName() {
    if (state.token < prefix) return state.token ? `register token ${state.token}` : "the class token";
    return `patch (${cellOf(state.token).join(", ")})${times > 1 ? ` of slice ${state.time + 1}` : ""}`;
  }

  const view = choices("What the tiles show", Object.entries(VIEWS), "attention", (value) => { state.view = value; show(); });
  const near = `Rows are computed in this page from features of ${found.precision === "half" ? "16" : "8"} bits; `
    + `those that were checked are within ${num(Math.max(found.error, 1e-6), 2)} of attention_rows.`;
  show();
  return section("explorer", "Attention",
    el("p", { class: "quiet" }, `Click a patch of the image to see what it takes from all others. ${found.words ? `Model: ${found.words}. ` : ""}${near}`),
    thumbs,
    el("div", { class: "explore" },
      el("div", { class: "card" }, stage, caption, prefixes, timeSlider && timeSlider.node, frameSlider && frameSlider.node),
      el("div", { class: "card" }, title, el("div", { class: "triptych" }, big.map((each) => each.node)), strip,
        legendOfHeat("largest of the row"))),
    el("div", { class: "bar" }, view), overview);
}
