"""Whether kernels fit GPUs that are not here: compiled with the real assembler for each, with as many stages as fit."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.jit import Launch
from kernels.operation import Op
from kernels.unfit import unfit
from tests.support.kernels.sm90 import Variant

SHARED_BYTES = MappingProxyType(
    {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
)
"""Of a block, at most, by compute capability (CUDA C++ Programming Guide, technical specifications)."""


@dataclass(frozen=True, slots=True)
class Fit:
    """`num_stages` of the pipeline that fit, 0 where none do and the twin has the work; `reason`, why not all."""

    num_stages: int
    shared_bytes: int
    reason: str = ""


def fit(launch: Launch, capability: int) -> Fit:
    """What `kernels.fallback` would come to there."""
    reason = ""
    for num_stages in range(launch.config.num_stages, 0, -1):
        try:
            shared_bytes = _shared_bytes(launch, capability, num_stages)
        except Exception as error:  # what is no fault of the kernel's is raised again
            found = unfit(error)
            if found is None:
                raise
            return Fit(0, 0, found.reason)
        if shared_bytes <= SHARED_BYTES[capability]:
            return Fit(num_stages, shared_bytes, reason)
        reason = reason or f"{shared_bytes} bytes of shared memory"
    return Fit(0, 0, reason)


def distinct(launches: list[tuple[str, Launch]]) -> dict[str, Launch]:
    """Launches by name; those that compile to the same code once."""
    found: dict[str, Launch] = {}
    seen: list[object] = []
    for name, launch in launches:
        key = (launch.kernel, Variant.of(launch), launch.config)
        if key not in seen:
            seen.append(key)
            found[f"{name}-{launch.kernel.__name__.strip('_')}"] = launch
    return found


def launches_of(op: Op, device: Any) -> list[tuple[str, Launch]]:
    """Those of every real case, by operation and case."""
    cases = [case for case in op.cases() if case.is_real]
    return [(f"{op.name}-{case.name}", launch) for case in cases for launch in op.prepare(**case.build(device))[1]]


def _shared_bytes(launch: Launch, capability: int, num_stages: int) -> int:
    variant = Variant.of(launch)
    names = list(variant.signature)
    source = ASTSource(
        fn=launch.kernel,
        signature=variant.signature,
        constexprs=variant.constants,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in variant.aligned},
    )
    options = {"num_warps": launch.config.num_warps, "num_stages": num_stages}
    compiled: Any = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return int(compiled.metadata.shared)
