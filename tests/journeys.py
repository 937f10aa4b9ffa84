"""Three journeys through the package, traced: a mask, a training step, a graph.

    python -m tests.journeys       writes them into CONTRIBUTING.md

`tests/test_journeys.py` holds how many files each may pass, and that the text is up to date.
"""

import re
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

from tests.tracing import files_of
from tests.training.runs import make_data, write_recipe
from vit_rpe.attention import masked_linear_attention
from vit_rpe.features import ReLUFeatures
from vit_rpe.graph import grid_edges
from vit_rpe.graph.gkat.models import GKATNodeClassifier
from vit_rpe.rpe import OffsetRPE
from vit_rpe.training import assemble, load_recipe, start_run

GUIDE = Path(__file__).parents[1] / "CONTRIBUTING.md"
BEGIN, END = "<!-- journeys: python -m tests.journeys -->", "<!-- end of journeys -->"


def a_mask() -> list[str]:
    """From the parameters of an RPE module to the attention, on the product path."""
    rpe, features = OffsetRPE((6, 5), 3), ReLUFeatures()
    q, k, v = (torch.randn(2, 3, 30, 8, requires_grad=True) for _ in range(3))

    def work() -> None:
        masked_linear_attention(q, k, v, rpe(), features=features, path="product")

    work()
    return files_of(work)


def a_step() -> list[str]:
    """The second step of a run without workers: shards to weights, in data/ and training/."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        data = make_data(folder / "data")
        options = {"mixup": 0.4, "reprob": 0.3, "device": "cpu", "workers": 0}
        file = write_recipe(folder / "a.yaml", data_dir=data, output=name, **options)
        trainer = assemble(start_run(load_recipe(file)))
        trainer.open_logs(stack)
        batches = trainer._batches()
        trainer.advance(*next(batches))
        files = files_of(lambda: trainer.advance(*next(batches)))
    return [file for file in files if file.startswith(("data/", "training/"))]


def a_graph() -> list[str]:
    """From edge_index to logits, with walks that are drawn on the way."""
    torch.manual_seed(0)
    model, edges, x = GKATNodeClassifier(5, 8, 3), grid_edges((5, 6)), torch.randn(30, 5)
    model(x, edges)
    return files_of(lambda: model(x, edges))


JOURNEYS: dict[str, Callable[[], list[str]]] = {
    "A mask": a_mask,
    "A training step": a_step,
    "A graph": a_graph,
}


def text() -> str:
    """The journeys as Markdown."""
    parts = []
    for name, journey in JOURNEYS.items():
        files = journey()
        story = (journey.__doc__ or "").strip()
        steps = " > ".join(f"`{file.removesuffix('.py')}`" for file in files)
        parts.append(f"**{name}** ({len(files)} files). {story}\n{steps}")
    return "\n\n".join(parts)


def written() -> str:
    """The journeys as the guide has them."""
    match = re.search(f"{re.escape(BEGIN)}\n(.*?)\n{re.escape(END)}", GUIDE.read_text(), re.DOTALL)
    assert match is not None, f"{GUIDE.name} has no place for journeys"
    return match[1]


def main() -> None:
    guide = GUIDE.read_text()
    GUIDE.write_text(guide.replace(f"{BEGIN}\n{written()}\n{END}", f"{BEGIN}\n{text()}\n{END}"))


if __name__ == "__main__":
    main()
