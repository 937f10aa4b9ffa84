// The recipe, how it differs from its base and from other runs, and where a run comes from.

function recipeSection(runs) {
  const told = runs.filter((run) => run.recipe);
  if (!told.length) return null;
  return section("recipe", "Recipe",
    told.length > 1 ? between_runs(told) : null,
    told.map((run) => fromBase(run, told.length > 1)),
    told.map((run) => el("details", {},
      el("summary", {}, told.length > 1 ? `All keys of ${run.name}` : "All keys"),
      table(["key", "value"], Object.entries(run.recipe.values), []))));
}

function between_runs(runs) {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.recipe.values)))]
    .filter((key) => !["experiment", "output", "resume"].includes(key))
    .filter((key) => new Set(runs.map((run) => run.recipe.values[key])).size > 1);
  const rows = keys.map((key) => [key, ...runs.map((run) => run.recipe.values[key] ?? "–")]);
  return [el("h3", {}, "Difference between the runs"),
    keys.length ? table(["key", ...runs.map((run) => run.name)], rows, [])
      : el("p", { class: "quiet" }, "The recipes are the same.")];
}

function fromBase(run, several) {
  const { changed, base, file } = run.recipe;
  if (!changed) return null;
  const rows = Object.entries(changed).map(([key, [was, now]]) => [key, was, now]);
  const known = base && base !== "–";
  const from = known ? base : "the defaults";
  return [el("h3", {}, `${several ? `${run.name}: d` : "D"}ifference from ${from}`),
    el("p", { class: "quiet" }, `The recipe is ${file}.`),
    rows.length ? table(["key", known ? "base" : "default", "here"], rows, [])
      : el("p", { class: "quiet" }, "None.")];
}

function originSection(runs) {
  const told = runs.filter((run) => run.origin && run.origin.length);
  if (!told.length) return null;
  return section("origin", "Plan and environment", told.map((run) => [
    told.length > 1 ? el("h3", {}, run.name) : null,
    run.origin.map((session, i) => [
      i ? el("h4", {}, `Resumed after step ${session.step}`) : null,
      el("dl", { class: "rows" }, session.rows.map(([name, value]) =>
        el("div", {}, el("dt", {}, name), el("dd", {}, value))))])]));
}
