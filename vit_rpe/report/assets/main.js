// Everything put together: sections about all runs, then those about the chosen one.

function main() {
  const content = JSON.parse($("#content").textContent);
  HEAT = ramp(content.anchors.map(rgb));
  const { runs } = content;
  head(content);
  const common = el("div", { class: "common" }, [curvesSection(runs)]);
  const own = el("div", { class: "own" });
  const after = el("div", { class: "common" }, [recipeSection(runs), originSection(runs)]);
  const show = (i) => {
    const run = runs[i];
    own.replaceChildren(...[answersSection, samplesSection, explorerSection, masksSection, batchesSection, notesSection]
      .map((make) => guarded(() => make(run))).filter(Boolean));
    nav();
  };
  const tabs = runs.length > 1 && el("div", { class: "tabs" }, el("span", {}, "Run"),
    choices("Run", runs.map((run, i) => [i, run.name]), 0, show));
  $("#main").replaceChildren(...[common, tabs, own, after].filter(Boolean));
  show(0);
  document.documentElement.dataset.ready = "true";
}

// One section that cannot be drawn must not take the others with it.
function guarded(make) {
  try {
    return make();
  } catch (error) {
    console.error(error);
    return el("p", { class: "wrong" }, `A part of this page cannot be drawn: ${error.message}`);
  }
}

function nav() {
  $("#nav").replaceChildren(...$$("main section").map((each) =>
    el("a", { href: `#${each.id}` }, $("h2", each).textContent)));
}

main();
