"""Every kernel at real models' shapes through the compiler for sm_90. Run by `test_compiles_sm90.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels.attention.cases import AttentionShape, build
from kernels.choice import cases as sample_cases
from kernels.choice.cases import build_probabilities, build_reject, build_sample
from kernels.dispatch import load_ops
from kernels.jit import Launch
from kernels.operation import Arguments, Op
from kernels.paging import PAGE_SIZE
from kernels.products.w8 import RowWeight
from tests.support.kernels.sm90 import (
    REGISTERS_PER_SM,
    SHARED_BYTES_KEPT,
    SHARED_BYTES_PER_SM,
    MachineCode,
    Variant,
    compile_for_sm90,
)

META = torch.device("meta")
ONES = torch.empty(4096, device=META)
WEIGHT = RowWeight(torch.empty(4096, 4096, dtype=torch.int8, device=META), ONES)


def variants() -> dict[str, tuple[Op, Launch]]:
    """Every launch of every real case by name; those that compile to the same code once."""
    found: dict[str, tuple[Op, Launch]] = {}
    seen: list[object] = []
    for op in load_ops():
        for case in op.cases():
            if case.is_real:
                for launch in op.prepare(**case.build(META))[1]:
                    key = (launch.kernel, Variant.of(launch), launch.config)
                    if key not in seen:
                        seen.append(key)
                        found[f"{op.name}-{case.name}-{launch.kernel.__name__.strip('_')}"] = op, launch
    return found


VARIANTS = variants()


@pytest.fixture(scope="module")
def compiled() -> dict[str, MachineCode]:
    """Code by the name of its variant."""
    return {}


@pytest.fixture(params=VARIANTS)
def variant(
    request: pytest.FixtureRequest, compiled: dict[str, MachineCode], tmp_path: Path
) -> tuple[Launch, MachineCode]:
    """A launch and what it was compiled to."""
    name: str = request.param
    _, launch = VARIANTS[name]
    if name not in compiled:
        compiled[name] = compile_for_sm90(launch, tmp_path)
    return launch, compiled[name]


def test_kernel_keeps_its_numbers_in_registers(variant: tuple[Launch, MachineCode]) -> None:
    """Nothing is spilled to the stack."""
    _, code = variant

    assert code.stack_bytes == 0
    assert code.instructions["STL"] == code.instructions["LDL"] == 0


def test_kernel_leaves_room_for_its_neighbours(variant: tuple[Launch, MachineCode]) -> None:
    """As many blocks as its configuration says fit onto a multiprocessor, by registers and by shared memory."""
    launch, code = variant
    config = launch.config

    assert code.num_registers * config.num_warps * 32 * config.blocks_per_sm <= REGISTERS_PER_SM
    assert (code.shared_bytes + SHARED_BYTES_KEPT) * config.blocks_per_sm <= SHARED_BYTES_PER_SM


def test_kernel_is_made_of_the_instructions_it_claims(variant: tuple[Launch, MachineCode]) -> None:
    """Warp-group products and asynchronous copies are in the machine code where the configuration claims them."""
    launch, code = variant

    assert [name for name in launch.config.instructions if not code.instructions[name]] == []


DECODING = [name for name, (op, launch) in VARIANTS.items() if "skipped" in launch.arguments]


@pytest.mark.parametrize("name", DECODING)
def test_paged_decode_has_pages_on_their_way(name: str, compiled: dict[str, MachineCode], tmp_path: Path) -> None:
    """One stage less than configured is copied ahead: that the address comes from a page table does not hold it up."""
    _, launch = VARIANTS[name]
    code = compiled.get(name) or compile_for_sm90(launch, tmp_path)
    keys = launch.arguments["keys"]
    assert isinstance(keys, torch.Tensor)

    page_bytes = 2 * PAGE_SIZE * keys.shape[3] * keys.element_size()
    assert code.shared_bytes >= (launch.config.num_stages - 1) * page_bytes


SIZES = (1, 2, 3, 8, 9, 16, 17, 32, 33, 64, 65, 128, 200)
STEPS: dict[str, tuple[Callable[[int], Arguments], int]] = {
    # One split or several, and what puts them together.
    "paged_decode": (lambda size: build(AttentionShape([(1, 9 * size)] * size, dtype=torch.bfloat16), META), 3),
    "paged_prefill": (lambda size: build(AttentionShape([(size, 9 * size)] * 2, dtype=torch.bfloat16), META), 1),
    "norm": (lambda size: {"x": torch.empty(size, 4096, device=META), "weight": ONES, "eps": 1e-5}, 1),
    # Up to 8, 16, 32, 64 and more rows, and what puts splits together.
    "w8": (lambda size: {"x": torch.empty(size, 4096, device=META), "weight": WEIGHT}, 4),
    "sample": (lambda size: build_sample(sample_cases.ChoiceShape(size, 32_000, top_p=(0.9,)), META), 3),
    "probabilities": (lambda size: build_probabilities(sample_cases.ChoiceShape(size, 32_000), META), 2),
    "reject": (lambda size: build_reject((size % 5,) * size, 32_000, 1.0, 1.0, META), 2),
}


@pytest.mark.parametrize("name", STEPS)
def test_kernel_of_a_step_is_compiled_for_few_sizes(name: str) -> None:
    """Whatever comes to be in a step, the server does not stop for the compiler again and again."""
    build_step, most = STEPS[name]
    op = next(op for op in load_ops() if op.name == name)
    seen: list[object] = []
    for size in SIZES:
        for launch in op.prepare(**build_step(size))[1]:
            key = (launch.kernel, Variant.of(launch), launch.config)
            seen += [] if key in seen else [key]

    assert len(seen) <= most


def test_gate_sees_what_does_not_fit(tmp_path: Path) -> None:
    """A configuration of too few threads spills, and the gate has eyes for it."""
    _, launch = next(entry for name, entry in VARIANTS.items() if name.startswith("paged_prefill-8b-8192-"))
    narrow = Launch(
        launch.kernel, launch.grid, launch.arguments, type(launch.config)(num_warps=4, num_stages=3, blocks_per_sm=1)
    )

    code = compile_for_sm90(narrow, tmp_path)

    assert code.stack_bytes > 0
    assert code.instructions["STL"] > 0
