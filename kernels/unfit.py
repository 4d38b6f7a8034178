"""Which errors of a launch mean that this machine cannot run a kernel at all, whatever it is called with.

A kernel that does not compile, asks for more than the GPU has, or cannot be loaded. What a running kernel or the memory
of the moment does wrong is none of these, and neither is a wrong argument. Known from Triton 3.6 and 3.7. Imports
Triton.
"""

from __future__ import annotations

import errno
import subprocess
from dataclasses import dataclass

from triton.compiler.errors import CompilationError  # type: ignore[import-untyped, import-not-found, unused-ignore]
from triton.runtime.errors import (  # type: ignore[import-untyped, import-not-found, unused-ignore]
    OutOfResources,
    PTXASError,
)

_GPU_REMEDY = "another `dtype`, `quantization` or `kv_dtype` may have kernels that it can run"
_MACHINE_REMEDY = (
    "Triton needs a C compiler, Python's headers, and a folder that it may write to (TRITON_CACHE_DIR); "
    "start anew once they are there"
)
_DRIVER = "triton error [cuda]: "
_NOT_LOADED = (
    "device kernel image is invalid",
    "no kernel image is available",
    "ptx jit compil",
    "unsupported toolchain",
    "too many resources requested for launch",
)
"""The driver's words for code that it does not take; any other of its errors may be a fault of what ran before."""
_NOT_BUILT = (
    "passmanager::run failed",
    "failed to find c compiler",
    "failed to load newly compiled",
    "cannot find ptxas",
    "libcuda.so cannot found",
    "active drivers",
)
_LONGEST = 400


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a kernel does not run here, in one line, and what an operator could do.

    `has_too_many_stages`: what it wants for is shared memory, of which fewer stages take less.
    """

    reason: str
    remedy: str
    has_too_many_stages: bool = False


def unfit(error: Exception) -> Unfit | None:
    """What the error of a launch says of its kernel; None where it is a fault that nobody may pass over."""
    if isinstance(error, OutOfResources):
        return Unfit(_line(error), _GPU_REMEDY, error.name == "shared memory")
    if isinstance(error, CompilationError | PTXASError):
        return Unfit(_line(error), _GPU_REMEDY)
    # Before it runs, a launch touches files only to compile.
    is_files = isinstance(error, OSError) and error.errno != errno.ENOMEM
    if is_files or isinstance(error, subprocess.CalledProcessError):
        return Unfit(_line(error), _MACHINE_REMEDY)
    if isinstance(error, RuntimeError | AssertionError):
        words = str(error).lower()
        if words.startswith(_DRIVER):
            return Unfit(_line(error), _GPU_REMEDY) if any(said in words for said in _NOT_LOADED) else None
        if any(said in words for said in _NOT_BUILT):
            return Unfit(_line(error), _MACHINE_REMEDY)
    return None


def _line(error: Exception) -> str:
    """A compiler's message ends with what is wrong."""
    words = " ".join(str(error).split())
    return words if len(words) <= _LONGEST else f"...{words[-_LONGEST:]}"
