// Confusion matrix, classes, calibration, and samples as pictures.

function answersSection(run) {
  const found = run.answers;
  if (!found) return null;
  const panel = el("div", { class: "panel", id: "cell-samples", "aria-live": "polite" },
    el("p", { class: "quiet hint" }, "Click a cell to see its samples."));
  return section("results", "Evaluation",
    el("p", { class: "quiet" }, `${found.count.toLocaleString("en-US")} samples, ${found.words}.`,
      found.bad ? ` ${found.bad} could not be read.` : ""),
    el("div", { class: "two" },
      el("div", { class: "card" }, el("h3", {}, "Confusion matrix"), matrix(run, panel), panel),
      el("div", { class: "stack" },
        el("div", { class: "card" }, el("h3", {}, "Calibration"), calibration(found)),
        el("div", { class: "card" }, el("h3", {}, "Classes"), perClass(found.perClass, run.classes)))));
}

function matrix(run, panel) {
  const { shown, cells, perClass: rows } = run.answers;
  const { classes } = run;
  const counts = new Map(cells.map((cell) => [`${cell[0]},${cell[1]}`, cell]));
  const large = shown.length > 14;
  const note = shown.length < rows.length && el("p", { class: "note" },
    `The ${shown.length} of ${rows.length.toLocaleString("en-US")} classes that are most often taken for each other.`);
  const body = shown.map((t) => el("tr", {}, el("th", { scope: "row", title: classes[t] }, classes[t]),
    shown.map((p) => {
      const cell = counts.get(`${t},${p}`);
      const count = cell ? cell[2] : 0;
      const share = rows[t][0] ? count / rows[t][0] : 0;
      const name = `${classes[t]} taken for ${classes[p]}: ${count}`;
      const node = button(count && !large ? String(count) : "", () => {
        $$("button[aria-pressed=true]", node.closest("table")).forEach(
          (each) => each.setAttribute("aria-pressed", "false"));
        node.setAttribute("aria-pressed", "true");
        showCell(run, panel, t, p, cell);
      }, { title: name, "aria-label": name, "aria-pressed": "false", "data-cell": `${t},${p}`, class: count ? "" : "none" });
      if (count) {
        const color = heatColor(share, 1);
        node.style.background = `rgb(${color.map(Math.round).join()})`;
        node.style.color = color[0] + color[1] + color[2] > 420 ? "#1d1d1f" : "#fff";
      }
      return el("td", {}, node);
    })));
  return [note, el("div", { class: "scroll" },
    el("table", { class: large ? "matrix dense" : "matrix" },
      el("thead", {}, el("tr", {}, el("th", { class: "corner" }, "true \\ predicted"),
        shown.map((p) => el("th", { scope: "col", title: classes[p] }, el("span", {}, classes[p]))))),
      el("tbody", {}, body))),
  legendOfHeat("share of the true class")];
}

function showCell(run, panel, t, p, cell) {
  const { classes, answers: { samples } } = run;
  const title = t === p ? `${classes[t]}, recognized` : `${classes[t]} taken for ${classes[p]}`;
  if (!cell) {
    panel.replaceChildren(el("h4", {}, title), el("p", { class: "quiet" }, "No sample."));
    return;
  }
  const [, , count, listed] = cell;
  const some = listed.length < count ? `, the ${listed.length} with the largest loss` : "";
  panel.replaceChildren(el("h4", {}, `${title}: ${count}${some}`),
    gallery(run, listed.map((i) => samples[i])));
}

function gallery(run, samples) {
  const { classes } = run;
  const pictures = samples.some((sample) => sample[6] !== null);
  return el("ul", { class: "gallery" }, samples.map(
    ([number, key, label, predicted, confidence, loss, picture]) => el("li", {},
      !pictures ? null : picture === null ? el("div", { class: "nopicture" }, "no picture")
        : el("img", { src: run.pictures[picture], alt: `sample ${key || number}` }),
      el("div", { class: label === predicted ? "right" : "wrong" },
        el("b", {}, classes[predicted]), ` ${percent(confidence, 0)}`),
      label === predicted ? null : el("div", {}, `true: ${classes[label]}`),
      el("small", {}, `loss ${num(loss, 3)}`),
      el("small", { title: key }, key || `#${number}`))));
}

function samplesSection(run) {
  const found = run.answers;
  if (!found) return null;
  const pick = (rows) => rows.map((i) => found.samples[i]);
  return section("samples", "Samples",
    el("h3", {}, "Largest loss"), gallery(run, pick(found.worst)),
    el("h3", {}, "Smallest loss"), gallery(run, pick(found.best)));
}

function perClass(found, classes) {
  const names = ["class", "samples", "top-1", "most often taken for"];
  const rows = found.map(([count, accuracy, other, times], i) =>
    [classes[i], count, accuracy, other === null ? "" : `${classes[other]} (${times})`]);
  const state = { column: 2, up: true, most: 300 };
  const body = el("tbody");
  const value = (cell) => (cell === null ? -1 : cell);
  const show = () => {
    const sorted = [...rows].sort((a, b) => {
      const [x, y] = [value(a[state.column]), value(b[state.column])];
      const order = typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
      return state.up ? order : -order;
    });
    body.replaceChildren(...sorted.slice(0, state.most).map(([name, count, accuracy, other]) => el("tr", {},
      el("th", { scope: "row" }, name), el("td", { class: "n" }, count.toLocaleString("en-US")),
      el("td", { class: "n" }, accuracy === null ? "–" : `${accuracy.toFixed(1)} %`), el("td", {}, other))));
    heads.forEach((each, i) => each.setAttribute("aria-sort",
      i === state.column ? (state.up ? "ascending" : "descending") : "none"));
  };
  const heads = names.map((name, i) => el("th", { class: i === 1 || i === 2 ? "n" : null },
    button(name, () => { state.up = state.column === i ? !state.up : true; state.column = i; show(); })));
  show();
  const all = rows.length > state.most && button(`Show all ${rows.length.toLocaleString("en-US")}`, () => {
    state.most = rows.length;
    all.hidden = true;
    show();
  });
  return el("div", { class: "scroll tall" }, el("table", { class: "grid sortable", id: "per-class" },
    el("thead", {}, el("tr", {}, heads)), body), all);
}

// Bars: how often the model was right; the line: how sure it was.
function calibration(found) {
  const bins = found.calibration;
  const [width, height, left, bottom] = [330, 200, 34, 24];
  const x = (t) => left + t * (width - left - 18);
  const y = (t) => height - bottom - t * (height - bottom - 8);
  const most = Math.max(...bins.map((bin) => bin[0]), 1);
  const bars = bins.map(([count, confidence, right], i) => {
    if (!count) return null;
    const accuracy = right / count;
    const words = `confidence ${percent(confidence / count)}, right ${percent(accuracy)}, ${count} samples`;
    return svg("g", {},
      svg("rect", { class: "calibrated", x: x(i / bins.length) + 1, width: x(1 / bins.length) - x(0) - 2,
        y: y(accuracy), height: Math.max(1, y(0) - y(accuracy)), opacity: 0.35 + 0.65 * Math.sqrt(count / most) }),
      svg("circle", { class: "confident", r: 3, cx: x(confidence / count), cy: y(accuracy) }),
      svg("title", {}, words));
  });
  return [svg("svg", { class: "calibration", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": "How often the model was right, by its confidence" },
    [0, 0.5, 1].map((t) => svg("g", { class: "tick" },
      svg("line", { x1: x(0), x2: x(1), y1: y(t), y2: y(t) }),
      svg("text", { x: left - 6, y: y(t) + 4, "text-anchor": "end" }, `${100 * t}`),
      svg("text", { x: x(t), y: height - 6, "text-anchor": "middle" }, `${100 * t}`))),
    svg("line", { class: "ideal", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }), bars),
  el("p", { class: "quiet" }, "Bars: how often predictions of a confidence (both in percent) were right; dark bars have more ",
    "samples, dots are at their mean confidence. Calibration error ", el("b", {}, num(found.metrics.calibration_error, 3)), ".")];
}

function batchesSection(run) {
  if (!run.batches || !run.batches.length) return null;
  const name = (c) => run.classes[c] ?? String(c);
  const part = ([c, w]) => `${name(c)} (${percent(w, 0)})`;
  const targetOf = (targets) => {
    const large = targets.filter(([, w]) => w > 0.05); // what smoothing gives to all is small
    return large.length === 1 ? name(large[0][0]) : large.map(part).join(" + ") || "no target";
  };
  return section("batches", "Training batches",
    el("p", { class: "quiet" }, "As the model saw them: cropped, augmented and mixed."),
    run.batches.map((batch) => [
      el("h3", {}, `Epoch ${batch.epoch}`),
      el("ul", { class: "gallery" }, batch.samples.map((sample) => el("li", {},
        framesOf(sample.pictures.map((i) => (i === null ? null : run.batchPictures[i]))),
        el("small", { class: "target", title: sample.targets.map(part).join(" + ") }, targetOf(sample.targets)))))]));
}

function framesOf(pictures) {
  const shown = pictures.filter(Boolean);
  if (!shown.length) return el("div", { class: "nopicture" }, "no picture");
  return el("div", { class: shown.length > 1 ? "frames" : "" },
    shown.map((src, i) => el("img", { src, alt: shown.length > 1 ? `frame ${i + 1}` : "sample" })));
}
