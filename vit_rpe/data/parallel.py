"""A parallel map over processes: results in order, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, TypeVar

from tqdm import tqdm

T = TypeVar("T")
R = TypeVar("R")

_work: Callable[[Any], Any] | None = None


def parallel_map(
    work: Callable[[T], R], items: Sequence[T], workers: int, title: str | None
) -> Iterator[R]:
    """Yield work(item) for every item, in order.

    Without a title there is no progress bar; with one worker all happens in this process.
    """
    bar = partial(tqdm, total=len(items), desc=title, unit="shard", disable=title is None)
    if workers <= 1:
        yield from bar(map(work, items))
        return
    # `work` can be large (a list of a million files): it is sent once to a process, not per item
    pool = ProcessPoolExecutor(min(workers, len(items)), initializer=_begin, initargs=(work,))
    try:
        yield from bar(pool.map(_do, items))
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work


def _do(item: Any) -> Any:
    assert _work is not None
    return _work(item)
