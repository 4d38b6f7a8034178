"""The typed door to Triton: only files with kernels come through it, so that a machine without Triton runs the twins.

Importing this module imports Triton (0.7 s, 52 MiB), which is why a kernel's file is not its torch twin's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import triton  # type: ignore[import-untyped, import-not-found, unused-ignore]
from torch import Tensor
from triton import language as tl  # type: ignore[import-untyped, import-not-found, unused-ignore]

from kernels.tuning import LaunchConfig

__all__ = ["Kernel", "Launch", "jit", "launched", "run", "tl"]

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


class Kernel(Protocol):
    """A compiled-on-demand function: launched as `kernel[grid](...)`, called by its name from other kernels."""

    @property
    def __name__(self) -> str:
        """As it stands in the source."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        """The launcher for a grid of programs."""

    def __call__(self, *args: Any) -> Any:
        """Inside of another kernel only."""


def jit(*, varying: Sequence[str] = ()) -> Callable[[Callable[..., object]], Kernel]:
    """Makes a function a Triton kernel.

    `varying`: integers that change from step to step, and tensors that are cut out of larger ones from step to step.
    Other integers are compiled for anew where they are 1 or begin to be divisible by 16, as other tensors' addresses
    are, which would stop a server for seconds.
    """

    def made(function: Callable[..., object]) -> Kernel:
        return cast("Kernel", triton.jit(function, do_not_specialize=list(varying)))

    return made


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel about to run: everything that a test, the compile gate or a benchmark has to know of it."""

    kernel: Kernel
    grid: tuple[int, ...]
    arguments: Mapping[str, object]
    config: LaunchConfig

    @property
    def variant(self) -> tuple[object, ...]:
        """What says whether a GPU can run it: the kernel, what it is compiled for, and the types that it meets."""
        met: list[object] = [self.kernel.__module__, self.kernel.__name__, self.config]
        for name, value in self.arguments.items():
            if isinstance(value, Tensor):
                met.append(value.dtype)
            elif value is None or name.isupper():
                met.append(value)
        return tuple(met)

    def __call__(self) -> None:
        """Puts the kernel on the current stream and does not wait for it."""
        config = self.config
        self.kernel[self.grid](**self.arguments, num_warps=config.num_warps, num_stages=config.num_stages)


def run(launches: list[Launch]) -> None:
    """One after the other, on the current stream."""
    for launch in launches:
        launch()


def launched(prepare: Callable[_Given, tuple[_Made, list[Launch]]]) -> Callable[_Given, _Made]:
    """The function that prepares, runs what has to run, and returns where the result will be."""

    @wraps(prepare)
    def launch(*given: _Given.args, **named: _Given.kwargs) -> _Made:
        made, launches = prepare(*given, **named)
        run(launches)
        return made

    return launch
