"""Training with early stopping, of classifiers of graphs and of nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import GraphBatch, NodeTask


@dataclass(frozen=True)
class Schedule:
    """Adam, and when to stop: after `patience` epochs in which nothing got better."""

    lr: float
    epochs: int
    patience: int
    weight_decay: float = 0.0
    batch_size: int = 128
    by_loss: bool = True  # a smaller loss counts as better, too, not only a higher accuracy
    jointly: bool = False  # keep an epoch whose accuracy and loss are both the best: GAT's rule


class Graphs(Protocol):
    """Graphs, and batches of some of them."""

    def __len__(self) -> int: ...

    def batch(self, index: Tensor) -> GraphBatch: ...


@dataclass
class Best:
    """The epoch of the best validation accuracy (then of the least loss), and its weights.

    Patience starts again whenever the accuracy is the best so far, or with `by_loss` the loss.
    With `jointly` an epoch is kept only if both are, and those that equal the best count, too: an
    accuracy that is high by chance in one of the first epochs, with a large loss, is not kept.
    """

    accuracy: float = -1.0
    loss: float = math.inf
    epoch: int = -1
    weights: dict[str, Tensor] = field(default_factory=dict)
    by_loss: bool = True
    jointly: bool = False
    most_accuracy: float = -1.0
    least_loss: float = math.inf
    last_gain: int = -1

    def see(self, epoch: int, accuracy: float, loss: float, model: nn.Module) -> None:
        """Take note of an epoch."""
        if self.jointly:
            accurate, small = accuracy >= self.most_accuracy, loss <= self.least_loss
            kept = accurate and small
        else:
            accurate, small = accuracy > self.most_accuracy, loss < self.least_loss
            kept = (accuracy, -loss) > (self.accuracy, -self.loss)
        if accurate or (self.by_loss and small):
            self.last_gain = epoch
        self.most_accuracy = max(accuracy, self.most_accuracy)
        self.least_loss = min(loss, self.least_loss)
        if kept:
            self.accuracy, self.loss, self.epoch = accuracy, loss, epoch
            self.weights = deepcopy(model.state_dict())


@dataclass(frozen=True)
class Fitted:
    """The outcome: figures of the epoch that was kept, and how long it took to find it."""

    val: float
    val_loss: float
    epoch: int
    epochs: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def fit(
    model: nn.Module,
    train: Callable[[], Iterator[Tensor]],
    validate: Callable[[], tuple[float, float]],
    schedule: Schedule,
    after: Callable[[int, float], bool] | None = None,
) -> Fitted:
    """Train a model, and leave it at its best epoch.

    `train` yields the losses of an epoch, `validate` returns accuracy and loss. `after` is told of
    each epoch and its accuracy; training ends where it returns True.
    """
    optimizer = torch.optim.Adam(
        model.parameters(), lr=schedule.lr, weight_decay=schedule.weight_decay
    )
    best = Best(by_loss=schedule.by_loss, jointly=schedule.jointly)
    epoch = 0
    for epoch in range(schedule.epochs):
        model.train()
        for loss in train():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy, value = validate()
        best.see(epoch, accuracy, value, model)
        if (after and after(epoch, accuracy)) or epoch - best.last_gain >= schedule.patience:
            break
    model.load_state_dict(best.weights)
    return Fitted(best.accuracy, best.loss, best.epoch, epoch + 1)


def fit_graphs(
    model: nn.Module,
    train: Graphs,
    val: Graphs,
    schedule: Schedule,
    after: Callable[[int, float], bool] | None = None,
) -> Fitted:
    """Train a classifier of graphs on shuffled batches."""

    def losses() -> Iterator[Tensor]:
        for index in torch.randperm(len(train)).split(schedule.batch_size):
            batch = train.batch(index)
            yield F.cross_entropy(model(batch), batch.y)

    held_out = batches(val)  # made once: their masks keep what they compute
    return fit(model, losses, lambda: score(model, held_out), schedule, after)


def batches(graphs: Graphs, batch_size: int = 128) -> list[GraphBatch]:
    """Join all graphs to batches, in their order."""
    return [graphs.batch(index) for index in torch.arange(len(graphs)).split(batch_size)]


@torch.no_grad()
def score(model: nn.Module, held_out: Iterable[GraphBatch]) -> tuple[float, float]:
    """Return the accuracy and the mean loss on all graphs of some batches."""
    right, loss, graphs = 0, 0.0, 0
    model.eval()
    for batch in held_out:
        out = model(batch)
        right += int((out.argmax(1) == batch.y).sum())
        loss += float(F.cross_entropy(out, batch.y, reduction="sum"))
        graphs += len(batch.y)
    return right / graphs, loss / graphs


def fit_nodes(
    model: nn.Module,
    data: NodeTask,
    schedule: Schedule,
    after: Callable[[int, float], bool] | None = None,
) -> Fitted:
    """Train a classifier of the nodes of one graph, with `train` and `val` as their numbers."""

    def losses() -> Iterator[Tensor]:
        yield F.cross_entropy(model(data)[data.train], data.y[data.train])

    def validate() -> tuple[float, float]:
        out, y = model(data)[data.val], data.y[data.val]
        return float((out.argmax(1) == y).float().mean()), float(F.cross_entropy(out, y))

    return fit(model, losses, validate, schedule, after)


@torch.no_grad()
def node_accuracy(model: nn.Module, data: NodeTask, nodes: Tensor) -> float:
    model.eval()
    return float((model(data)[nodes].argmax(1) == data.y[nodes]).float().mean())
