"""Recipe files: what they extend, what overrides them, one clear line for whatever is wrong."""

from __future__ import annotations

import os
from time import perf_counter

import pytest

import vit_rpe  # noqa: F401  registers the models
from tests.training.runs import TINY
from vit_rpe.training import RecipeError, load_recipe
from vit_rpe.training.recipe.file import as_yaml


def test_what_is_extended_is_overridden(write):
    write("base/a.yaml", **{**TINY, "data_dir": "x", "lr": 0.5, "seed": 7})
    write("b.yaml", extends="base/a.yaml", lr=0.25, model_kwargs={"depth": 5, "rpe_init": None})
    path = write("c.yaml", extends="b.yaml", epochs=9)
    recipe = load_recipe(path, ["lr=1e-3", "model_kwargs.num_heads=4", "aa=rand-m9-mstd0.5"])
    assert (recipe.seed, recipe.lr, recipe.epochs, recipe.aa) == (7, 1e-3, 9, "rand-m9-mstd0.5")
    kwargs = {**TINY["model_kwargs"], "depth": 5, "num_heads": 4}
    del kwargs["rpe_init"]  # null takes a key away
    assert recipe.model_kwargs == kwargs
    assert recipe.experiment == "c"
    absolute = write("d.yaml", extends=str(path))
    assert load_recipe(absolute, ["model_kwargs={}"]).model_kwargs == {}


def test_numbers_without_a_dot_are_numbers(write):
    path = write(**{**TINY, "data_dir": "x"})
    path.write_text(path.read_text() + "weight_decay: 1e-5\nwarmup_lr: 1E-6\n")
    recipe = load_recipe(path, ["lr=3e-4"])
    assert (recipe.weight_decay, recipe.warmup_lr, recipe.lr) == (1e-5, 1e-6, 3e-4)


def test_a_recipe_survives_being_saved(write, tmp_path):
    recipe = load_recipe(write(**{**TINY, "data_dir": "x"}))
    saved = tmp_path / "saved.yaml"
    saved.write_text(as_yaml(recipe))
    assert load_recipe(saved) == recipe


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epochs", "command line: an override is key=value, got 'epochs'"),
        ("epoch=3", "command line: no key 'epoch'; nearest is 'epochs'"),
        ("epochs=three", "command line: epochs: input should be a valid integer, got 'three'"),
        ("scale=[1", "command line: scale: not a YAML value: '[1'"),
        ("extends=b", "command line: extends belongs in a file"),
        ("model_kwarg.depth=3", "no key 'model_kwarg.depth'; nearest is 'model_kwargs'"),
    ],
)
def test_wrong_overrides_are_refused(write, override, message):
    with pytest.raises(RecipeError) as error:
        load_recipe(write(**{**TINY, "data_dir": "x"}), [override])
    assert message in str(error.value)


def test_a_wrong_value_is_blamed_on_the_file_it_came_from(write):
    write("base.yaml", **{**TINY, "data_dir": "x", "epochs": "three"})
    with pytest.raises(RecipeError, match=r"base\.yaml: epochs: "):
        load_recipe(write("a.yaml", extends="base.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a recipe is a mapping of keys to values, got None"),
        ("- a", "a recipe is a mapping of keys to values, got ['a']"),
        ("a: [1", "is not YAML: "),
        ("model: !!python/object/apply:os.system ['true']", "is not YAML: could not determine"),
        ("epochs: 3", "model: is required"),
        ("epochs: 3\nlr: 1\nepochs: 4", "is not YAML: the key 'epochs' is there twice"),
    ],
)
def test_files_that_are_no_recipes(tmp_path, text, message):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as error:
        load_recipe(path)
    assert message in str(error.value) and "\n" not in str(error.value)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="cannot be read|is not YAML"):
        load_recipe(path)


def alias_bomb(levels: int = 9) -> str:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for i in range(1, levels):
        lines.append(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]")
    return "\n".join([*lines, f"model_kwargs: {{x: *a{levels - 1}}}"])


def merge_bomb(levels: int = 9) -> str:
    lines = ["a0: &a0 {x: 1}"]
    for i in range(1, levels):
        lines.append(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model_kwargs: " + "[" * 5000 + "]" * 5000, "is not YAML: it is nested too deeply"),
        ("model_kwargs: " + "{a: " * 30 + "1" + "}" * 30, "nested more than 20 deep"),
        (alias_bomb(), "more than 10000 values, with those that aliases (*) repeat"),
        (merge_bomb(), "more than 10000 values, with those that aliases (*) repeat"),
        ("model_kwargs: &a {x: *a}", "nested more than 20 deep"),
        ("seed: " + "9" * 5000, "is not YAML: "),
        ("seed: 0x" + "f" * 5000, "seed: a number that is too large, an integer of thousands"),
        ("seed: 18446744073709551616", "seed: a number that is too large, 18446744073709551616"),
        ('experiment: "a\\0b"', "experiment: a text with a NUL or half a character in it"),
        ('model_kwargs: {a: ["\\ud800"]}', "model_kwargs: a text with a NUL or half a char"),
        ("x: " + "y" * 2_000_000, "has 2000004 bytes, at most 1000000 are read"),
        ("model: " + "y" * 90_000, "model: no model 'yyy"),
        (
            "model: resnet18\ndata_dir: x\nlr: " + "y" * 90_000,
            "lr: input should be a valid number, got 'yyy",
        ),
        ("z" * 1000 + ": 3", "no key 'zzz"),
        ("q" * 90_000, "a recipe is a mapping of keys to values, got 'qqq"),
        ("extends: " + "[" + "1, " * 9000 + "1]", "extends: one path of a recipe, got [1, 1"),
        ('extends: "a\\0b"', "a text with a NUL"),
        ("extends: " + "x/" * 3000, "cannot be read: "),
    ],
    ids=range(18),
)
def test_recipes_that_explode_are_refused_in_a_short_line(tmp_path, text, message):
    path = tmp_path / "a.yaml"
    path.write_text(f"{text}\n")
    start = perf_counter()
    with pytest.raises(RecipeError) as error:
        load_recipe(path)
    shown = str(error.value)
    assert message in shown and "\n" not in shown and len(shown) < 1500
    assert perf_counter() - start < 3


@pytest.mark.parametrize(
    "override",
    ["lr=" + "[" * 5000, "lr=" + "9" * 5000, 'experiment="\\0"', "lr\0=3", "seed=!!int x"],
)
def test_overrides_that_explode(write, override):
    with pytest.raises(RecipeError, match="command line: ") as error:
        load_recipe(write(**{**TINY, "data_dir": "x"}), [override])
    assert len(str(error.value)) < 600


def test_a_chain_of_recipes_has_an_end(write):
    for i in range(40):
        write(f"r{i}.yaml", extends=f"r{i + 1}.yaml")
    path = write("r40.yaml", **{**TINY, "data_dir": "x"})
    with pytest.raises(RecipeError, match="r16.yaml: more than 16 recipes extend one another"):
        load_recipe(path.with_name("r0.yaml"))
    assert load_recipe(path.with_name("r30.yaml")).seed == TINY["seed"]


@pytest.mark.parametrize("kind", ["fifo", "zero", "folder"])
def test_what_is_not_a_file_is_no_recipe(tmp_path, kind):
    path = tmp_path / "a.yaml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(RecipeError, match="a.yaml cannot be read: "):
        load_recipe(path)
    with pytest.raises(RecipeError, match="cannot be read: .* is no name of a file"):
        load_recipe("a\0.yaml")


def test_aliases_of_a_usual_size_are_fine(write):
    path = write(**{**TINY, "data_dir": "x"})
    more = "mean: &half [0.5, 0.5, 0.5]\nstd: *half\nopt_kwargs: &o {a: 1, b: 2}\n"
    path.write_text(
        path.read_text() + more + "kd_model_name: resnet18\nkd_model_kwargs: {<<: *o, b: 3}"
    )
    recipe = load_recipe(path)
    assert recipe.std == [0.5] * 3 and recipe.kd_model_kwargs == {"a": 1, "b": 3}
