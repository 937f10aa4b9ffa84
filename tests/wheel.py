"""The wheel as people get it: built, installed outside the checkout, and used there.

    make test-wheel

Not collected with the other tests. The environment sees the packages of this one, but not the
checkout; that the wheel names all of them as its dependencies is checked by its imports.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser as Headers
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from PIL import Image

from vit_rpe.cli import COMMANDS
from vit_rpe.shipped import shipped

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")
SOURCES += ("CITATION.cff", "constraints.txt", "vit_rpe", "recipes")
SHORT = ("epochs=2", "warmup_epochs=0", "model_kwargs.depth=1")
# a second decoder of videos, in no extra: its error says what to do; and what torch brings for GPUs
OWN_WORDS = {"torchcodec", "triton"}
# what is not there after `pip install vit_rpe`; torch and timm bring the rest of `train`
TRAIN_ONLY = ("accelerate", "webdataset", "pydantic", "tensorboard", "sklearn")
EXTRAS_OF_ROOMS = {"data": "train", "training": "train", "cli": "train", "inference": "train"}
EXTRAS_OF_ROOMS |= {"graph": "graph", "report": "report", "experiments": "train graph report"}


def call(*command: object, **options: object) -> str:
    """What a command prints, both streams; it must succeed."""
    done = subprocess.run(
        [str(word) for word in command], text=True, stdout=-1, stderr=-2, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def dist(tmp_path_factory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    place = tmp_path_factory.mktemp("dist")
    copy = place / "checkout"
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            copy.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, copy)
    build = "from setuptools import build_meta as b; b.build_{}({!r})"
    call(sys.executable, "-c", build.format("sdist", str(place)), cwd=copy)
    (sdist,) = place.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (source,) = (place / "unpacked").iterdir()
    call(sys.executable, "-c", build.format("wheel", str(place)), cwd=source)
    return place


@pytest.fixture(scope="session")
def wheel(dist) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def env(wheel, tmp_path_factory) -> Path:
    """An environment with the wheel, and with the packages of this one."""
    place = tmp_path_factory.mktemp("env")
    call(sys.executable, "-m", "venv", "--without-pip", place)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = place / "lib" / version / "site-packages"
    # a path in a .pth file is searched, but its own .pth files are not read: no editable install
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", place)
    call(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
    return place


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Where commands are called: far from any checkout."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="session")
def variables() -> dict[str, str]:
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    # another place of the same C++ sources would compile them again, for all who share the result
    fixed = {"OMP_NUM_THREADS": "1", "VIT_RPE_NATIVE": "0"}
    return {k: v for k, v in os.environ.items() if k not in hidden} | fixed


@pytest.fixture(scope="session")
def run(env, folder, variables):
    """Call a program of the environment."""

    def run(program: str, *arguments: object) -> str:
        return call(env / "bin" / program, *arguments, cwd=folder, env=variables)

    return run


@pytest.fixture(scope="session")
def trained(run, folder) -> Path:
    """A run of the quickstart, which the wheel has made."""
    shown = run("vit-rpe", "train", "--recipe", "quickstart", *SHORT)
    assert "finished    2 epochs, 44 steps" in shown, shown
    return folder / "runs" / "quickstart"


# --- what is inside


def test_the_wheel_has_what_the_package_has_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    kinds = (".py", ".cpp", ".h", ".cu", ".typed", ".js", ".css", ".html")
    wanted = {str(p.relative_to(ROOT)) for p in (ROOT / "vit_rpe").rglob("*") if p.suffix in kinds}
    wanted.add("vit_rpe/py.typed")
    recipes = {f"vit_rpe/{p.relative_to(ROOT)}" for p in (ROOT / "recipes").rglob("*.yaml")}
    assert names == wanted | recipes and len(recipes) > 15


def requirements(wheel: Path) -> dict[str, set[str]]:
    """The distributions that the wheel asks for, by extra; without one by an empty name."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Headers().parsestr(archive.read(name).decode())
    found: dict[str, set[str]] = {extra: set() for extra in metadata.get_all("Provides-Extra", [])}
    found[""] = set()
    for text in metadata.get_all("Requires-Dist", []):
        each = Requirement(text)
        extras = [e for e in found if each.marker is None or each.marker.evaluate({"extra": e})]
        for extra in [""] if "" in extras else extras:
            found[extra].add(each.name.lower())
    return found


def imports(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """The packages that a module imports, and whether it does so as soon as it is imported."""
    lazy = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_for_types(node)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_extra":
            names = [str(getattr(node.args[0], "value", "torch"))]
        for name in names:
            yield name.partition(".")[0], node not in lazy


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


def test_all_imports_are_dependencies(wheel):
    needs, owners = requirements(wheel), packages_distributions()
    assert {"torch", "timm"} <= needs[""] and "accelerate" in needs["train"] - needs[""]
    wrong, seen = [], set()
    for file in sorted((ROOT / "vit_rpe").rglob("*.py")):
        room = file.relative_to(ROOT / "vit_rpe").parts[0]
        extras = EXTRAS_OF_ROOMS.get(room, "").split()
        at_once = needs[""].union(*(needs[extra] for extra in extras))
        for name, immediate in imports(ast.parse(file.read_text())):
            if name in sys.stdlib_module_names or name in {"vit_rpe", *OWN_WORDS}:
                continue
            given = {owner.lower() for owner in owners.get(name, [name])}
            seen |= given
            if not given & (at_once if immediate else set().union(*needs.values())):
                wrong.append(f"{file.relative_to(ROOT)}: {name}")
    assert not wrong
    assert {"torch", "timm", "accelerate", "webdataset", "pyyaml", "pillow"} <= seen


# --- how it is used


def test_the_commands_are_there_and_the_version_is_that_of_the_wheel(run, env, wheel):
    shown = run("vit-rpe")
    assert all(f"\n  {name} " in shown for name in COMMANDS)
    version = run("vit-rpe", "--version").split()[-1]
    assert wheel.name.startswith(f"vit_rpe-{version}-")
    where = run("python", "-c", "import vit_rpe; print(vit_rpe.__file__)").strip()
    assert Path(where).is_relative_to(env), "not the checkout"


def test_recipes_and_launch_files_are_found_by_name(run, folder, env):
    listed = run("vit-rpe", "recipes", "list")
    for kind in ("recipe", "launch file"):
        assert shipped(kind) and all(f"  {name} " in listed for name in shipped(kind))
    assert run("vit-rpe", "recipes", "show", "quickstart").startswith("# A Performer")
    run("vit-rpe", "recipes", "copy", "quickstart", "mine")
    assert (folder / "mine" / "quickstart.yaml").read_text().startswith("# A Performer")
    path = Path(run("vit-rpe", "recipes", "path", "cpu_x2").strip())
    assert path.is_file() and path.is_relative_to(env)


def test_a_run_is_trained_and_evaluated(run, trained, folder):
    shown = run(
        "vit-rpe", "evaluate", "--checkpoint", trained, "--data", folder / "data" / "digits"
    )
    assert "quickstart at 8: top-1 " in shown and "355 samples (0 bad)" in shown


def test_a_run_predicts(run, trained, folder):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")
    shown = run("vit-rpe", "predict", "photo.png", "--checkpoint", trained)
    assert "photo.png" in shown


def test_a_run_is_exported(run, trained, folder):
    run("vit-rpe", "export", trained, "--output", "model.onnx")
    assert (folder / "model.onnx").stat().st_size > 1000


def test_accelerate_launches_two_processes(run, trained, folder):
    file = run("vit-rpe", "recipes", "path", "cpu_x2").strip()
    launch = ("-m", "accelerate.commands.launch", "--config_file", file)
    more = ("train", "--recipe", "quickstart", *SHORT, "experiment=two")
    shown = run("python", *launch, "-m", "vit_rpe", *more)
    assert "2 processes on cpu" in shown and "finished    2 epochs, 44 steps" in shown
    assert (folder / "runs" / "two" / "checkpoints" / "best" / "model.safetensors").is_file()


WITHOUT_TRAIN = """
import vit_rpe, timm, torch
model = timm.create_model("performer_rpe2d_tiny_patch16_224", img_size=32, depth=1, num_classes=3)
assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
for room in ("data", "training"):
    try:
        getattr(vit_rpe, room)
    except vit_rpe.extras.MissingExtra as error:
        print(error)
"""


def test_without_the_extra_masks_work_and_training_says_what_is_missing(
    env, variables, tmp_path, folder
):
    absent = f"import sys\nsys.modules.update(dict.fromkeys({TRAIN_ONLY!r}))\n"
    (tmp_path / "sitecustomize.py").write_text(absent)
    variables = {**variables, "PYTHONPATH": str(tmp_path)}
    shown = call(env / "bin" / "python", "-c", WITHOUT_TRAIN, cwd=folder, env=variables)
    assert shown.count(" needs ") == shown.count("pip install 'vit_rpe[train]'") == 2, shown
    command = [str(env / "bin" / "vit-rpe"), "train", "--recipe", "quickstart"]
    done = subprocess.run(command, cwd=folder, env=variables, text=True, capture_output=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.endswith("pip install 'vit_rpe[train]'\n")
    listed = call(env / "bin" / "vit-rpe", "recipes", "list", cwd=folder, env=variables)
    assert "quickstart" in listed
