"""A stub of the CUDA runtime, compiled on demand and loaded before torch."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import torch

from vit_rpe.files import cache_folder

SOURCE = Path(__file__).with_name("driver.c")
_LOADED = "VIT_RPE_FAKE_DRIVER"


class DriverError(RuntimeError):
    """Why there is no stub of the CUDA runtime here."""


def use_driver() -> None:
    """Start this program again with the stub, unless there is a GPU or the stub is there already.

    To be called before anything else, at the top of `main`.
    """
    if torch.cuda.is_available():
        if os.environ.get(_LOADED):  # asking would initialize the device
            torch.cuda.is_bf16_supported = lambda including_emulation=True: True
        return
    if os.environ.get(_LOADED):
        raise DriverError("the stub of the CUDA runtime has no effect: torch links it statically")
    before = [os.environ["LD_PRELOAD"]] if os.environ.get("LD_PRELOAD") else []
    preload = ":".join([str(compiled()), *before])
    sys.stdout.flush()
    arguments = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, arguments, {**os.environ, _LOADED: "1", "LD_PRELOAD": preload})


def leave_after(main: Callable[[], int]) -> NoReturn:
    """Run a program, and end it, however it goes, without tearing the interpreter down.

    Autograd's thread of a fake device may still let go of Python objects then, and a thread that
    wants an interpreter that is ending aborts the process ("terminate called without an active
    exception").
    """
    code = 1
    try:
        code = main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:  # as the interpreter would
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def compiled() -> Path:
    """Return the stub as a shared library; it is compiled once."""
    if torch.version.cuda is None:
        raise DriverError("fake CUDA tensors with a backward pass need a torch that knows CUDA")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    headers = _headers()
    if compiler is None or headers is None:
        missing = "a C compiler" if compiler is None else "CUDA's driver_types.h"
        raise DriverError(f"the stub of the CUDA runtime needs {missing}")
    made_of = SOURCE.read_text() + str(torch.version.cuda)
    name = f"fake_cuda_{hashlib.sha256(made_of.encode()).hexdigest()[:12]}.so"
    library = cache_folder() / name
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        draft = library.with_suffix(f".{os.getpid()}")
        flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", f"-I{headers}"]
        command = [compiler, *flags, "-o", str(draft), str(SOURCE)]
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode:
            raise DriverError(f"the stub of the CUDA runtime does not compile: {made.stderr}")
        draft.replace(library)
    return library


def _headers() -> Path | None:
    """The folder of CUDA's headers: those that come with triton, or an installed toolkit's."""
    folders = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    triton = find_spec("triton")
    if triton is not None and triton.origin is not None:
        folders.insert(0, Path(triton.origin).parent / "backends" / "nvidia" / "include")
    found = [folder for folder in folders if (folder / "driver_types.h").exists()]
    return found[0] if found else None
