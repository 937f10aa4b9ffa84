"""Processes that train together, on this machine, over loopback, without starting Python anew.

A server process imports everything once; each process of a test is forked from it and has its own
memory, signals and end, as if `accelerate launch` had started it.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["vit_rpe", "vit_rpe.cli.train", "tests.training.launch"])
PATIENCE = 120.0


class Failed(AssertionError):
    """A process raised an error, or did not end in time."""


def launch(
    function: Callable[..., Any], *args: Any, world: int = 1, fails: bool = False
) -> list[Any]:
    """What `function(*args)` gives on each rank. With `fails`, the exit codes of the processes."""
    processes, pipes = begin(function, *args, world=world)
    results = [_received(pipe) for pipe in pipes]
    for process in processes:
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
            raise Failed("a process did not end")
    if fails:
        return [process.exitcode for process in processes]
    for kind, value in results:
        if kind != "value":
            raise Failed(value)
    return [value for _, value in results]


def begin(function: Callable[..., Any], *args: Any, world: int = 1) -> tuple[list[Any], list[Any]]:
    """The processes, for a test that does something to them, and the pipes with their results."""
    port = _free_port()
    pipes, processes = [], []
    for rank in range(world):
        ours, theirs = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(
            target=_child, args=(theirs, rank, world, port, function, args), daemon=False
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    return processes, pipes


def _received(pipe: Any) -> tuple[str, Any]:
    try:
        if not pipe.poll(PATIENCE):
            return "error", "no answer in time"
        return pipe.recv()
    except EOFError:
        return "error", "the process died"


def _child(pipe: Any, rank: int, world: int, port: int, function: Any, args: Any) -> None:
    import torch

    torch.set_num_threads(1)
    if world > 1:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(world),
            LOCAL_WORLD_SIZE=str(world),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            OMP_NUM_THREADS="1",
        )
    try:
        pipe.send(("value", function(*args)))
    except SystemExit:
        raise
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train(*args: str, world: int = 1) -> tuple[int, str]:
    """The exit code of `vit-rpe train`, and what the main process wrote to standard error."""
    answers = launch(_train, args, world=world)
    codes = {code for code, _ in answers}
    assert len(codes) == 1, answers
    return answers[0]


def _train(args: tuple[str, ...]) -> tuple[int, str]:
    import contextlib
    import io

    from vit_rpe.cli.train import main

    shown = io.StringIO()
    with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(shown):
        code = main(list(args))
    return code, shown.getvalue()
