// The head of the page, the comparison of runs, and what went wrong.

function head(content) {
  const { runs } = content;
  const several = runs.length > 1;
  const what = runs.some((run) => run.recipe) ? "runs" : "evaluations";
  const title = several ? `${runs.length} ${what} compared` : runs[0].name;
  const words = several ? runs.map((run) => run.name).join(", ") : [runs[0].model, runs[0].words].filter(Boolean).join(" · ");
  $("#top").append(
    el("div", { class: "title" },
      el("div", {}, el("h1", {}, title), el("p", { class: "lead" }, words)),
      themeSwitch()),
    several ? compared(runs) : el("dl", { class: "figures" },
      runs[0].figures.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))));
  $("#foot").append(el("p", {}, `Made by vit_rpe ${content.version}, ${content.made}. `,
    "One file, without anything from outside; it works offline."));
}

function themeSwitch() {
  const root = document.documentElement;
  const set = (theme) => {
    if (theme === "auto") root.removeAttribute("data-theme");
    else root.setAttribute("data-theme", theme);
    try { localStorage.setItem("vit_rpe-theme", theme); } catch { /* a page of a file may not */ }
  };
  let chosen = "auto";
  try { chosen = localStorage.getItem("vit_rpe-theme") || "auto"; } catch { /* likewise */ }
  if (!["auto", "light", "dark"].includes(chosen)) chosen = "auto";
  set(chosen);
  return choices("Theme", [["auto", "auto"], ["light", "light"], ["dark", "dark"]], chosen, set);
}

function compared(runs) {
  const models = runs.some((run) => run.model);
  const names = [...new Set(runs.flatMap((run) => run.figures.map(([name]) => name)))];
  return el("div", { class: "scroll" }, el("table", { class: "grid", id: "compared" },
    el("thead", {}, el("tr", {}, el("th", {}, "run"), models && el("th", {}, "model"),
      names.map((name) => el("th", { class: "n" }, name)))),
    el("tbody", {}, runs.map((run, i) => el("tr", {},
      el("th", { scope: "row" }, dot(i), run.name), models && el("td", {}, run.model),
      names.map((name) => el("td", { class: "n" },
        (run.figures.find((each) => each[0] === name) || ["", "–"])[1])))))));
}

function dot(i) {
  const node = el("span", { class: "dot" });
  node.style.background = `var(--series-${i % 7})`;
  return node;
}

function notesSection(run) {
  const events = run.events || { warnings: [], skipped: [], bad: [], skippedCount: 0, badCount: 0 };
  const parts = [];
  if (events.warnings.length) parts.push(el("h3", {}, "Warnings"), list(events.warnings));
  if (events.skippedCount) {
    parts.push(el("h3", {}, `Skipped steps (${events.skippedCount})`),
      table(["step", "loss", "samples"], events.skipped.map((row) => row.map(String)), [0]));
  }
  if (events.badCount) {
    parts.push(el("h3", {}, `Bad samples (${events.badCount})`),
      table(["split", "shard", "key", "reason"], events.bad, []));
  }
  if (run.notes.length) parts.push(el("h3", {}, "About this page"), list(run.notes));
  if (!parts.length) parts.push(el("p", { class: "quiet" }, "No warnings, no skipped steps, no bad samples."));
  return section("notes", "Notes", parts);
}

const list = (items) => el("ul", {}, items.map((item) => el("li", {}, item)));

// A table of texts; columns in `numbers` are right-aligned.
function table(names, rows, numbers) {
  const kind = (i) => (numbers.includes(i) ? "n" : null);
  return el("div", { class: "scroll" }, el("table", { class: "grid" },
    el("thead", {}, el("tr", {}, names.map((name, i) => el("th", { class: kind(i) }, name)))),
    el("tbody", {}, rows.map((row) => el("tr", {},
      row.map((cell, i) => el("td", { class: kind(i) }, cell)))))));
}
