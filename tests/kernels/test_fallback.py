"""What becomes of kernels that a machine cannot run, and of faults that are none of theirs."""

from __future__ import annotations

import errno
import logging
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed; it is made for Linux")

import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.errors import InterpreterError, OutOfResources, PTXASError

from kernels.checks import KernelInputError
from kernels.fallback import Fallbacks
from kernels.jit import Launch, jit, tl
from kernels.products.launch import Products
from kernels.products.w4a16 import quantize_int4, quantize_nf4, w4a16_linear_reference
from kernels.products.w8 import quantize_w8, w8_linear_reference, w8a8_linear_reference
from kernels.tuning import LaunchConfig

ARGUMENTS = torch.arange(4.0)


class Kernel:
    """Doubles what it is given, unless `fails` has an error for the stages that it is compiled with."""

    __name__ = "_doubling_kernel"

    def __init__(self, fails: Callable[[int], Exception | None]) -> None:
        self.fails = fails
        self.stages: list[int] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(x: Tensor, out: Tensor, *, num_warps: int, num_stages: int, **named: object) -> None:
            self.stages.append(num_stages)
            error = self.fails(num_stages)
            if error is not None:
                raise error
            torch.mul(x, 2, out=out)

        return launch

    def __call__(self, *args: Any) -> Any:
        raise AssertionError("a kernel is launched on a grid")


def doubling(fallbacks: Fallbacks, kernel: Kernel, twin: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """An operation of this kernel, compiled with three stages for as many numbers as it is given."""

    def prepare(x: Tensor) -> tuple[Tensor, list[Launch]]:
        out = torch.empty_like(x)
        arguments = {"x": x, "out": out, "BLOCK": x.shape[0]}
        return out, [Launch(kernel, (1,), arguments, LaunchConfig(num_warps=4, num_stages=3, blocks_per_sm=1))]

    return fallbacks.guarded("doubling", prepare, twin)


class Twin:
    """Doubles too, and counts."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        return x + x


@jit()
def _float8_kernel(x: tl.tensor) -> None:
    """Reads a float8, which not every GPU has."""
    tl.store(x, tl.load(x))


def float8_on_an_a100() -> Exception:
    """What Triton says of a kernel with float8 numbers when it compiles it for sm_80."""
    source = ASTSource(fn=_float8_kernel, signature={"x": "*fp8e4nv"})
    with pytest.raises(Exception, match="fp8e4nv not supported") as caught:
        triton.compile(source, target=GPUTarget("cuda", 80, 32))
    return caught.value


def no_driver() -> Exception:
    """What a launch says where Triton finds no GPU."""
    with pytest.raises(RuntimeError) as caught:
        _float8_kernel[(1,)](ARGUMENTS)
    return caught.value


def refused(message: str) -> Callable[[], Exception]:
    """The driver refuses what it is given."""
    return lambda: RuntimeError(f"Triton Error [CUDA]: {message}")


UNFIT: dict[str, Callable[[], Exception]] = {
    "type": float8_on_an_a100,
    "threads": lambda: OutOfResources(1024, 512, "threads"),
    "tensor-memory": lambda: OutOfResources(768, 512, "tensor memory"),
    "assembler": lambda: PTXASError("Internal Triton PTX codegen error\nptxas fatal: ..."),
    "image": refused("device kernel image is invalid"),
    "architecture": refused("no kernel image is available for execution on the device"),
    "old-driver": refused("the provided PTX was compiled with an unsupported toolchain."),
    "registers": refused("too many resources requested for launch"),
    "passes": lambda: RuntimeError("PassManager::run failed"),
    "no-compiler": lambda: RuntimeError("Failed to find C compiler. Please specify via CC environment variable."),
    "no-headers": lambda: subprocess.CalledProcessError(1, ["gcc", "main.c"]),
    "no-library": lambda: AssertionError("libcuda.so cannot found!\n"),
    "no-driver": no_driver,
    "read-only": lambda: OSError(errno.EROFS, "Read-only file system", "/root/.triton"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_kernel_that_cannot_run_gives_way_to_its_twin_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The call at hand is answered, the kernel is not tried again, and log and count say so once."""
    error = UNFIT[name]()
    fallbacks, twin, kernel = Fallbacks(), Twin(), Kernel(lambda _: error)
    double = doubling(fallbacks, kernel, twin)

    with caplog.at_level(logging.WARNING):
        answers = [double(ARGUMENTS) for _ in range(3)]

    assert all(torch.equal(answer, 2 * ARGUMENTS) for answer in answers)
    assert len(kernel.stages) == 1
    assert twin.num_calls == fallbacks.num_twin_calls == 3
    assert fallbacks.given_up == {"doubling": 1}
    assert len(caplog.records) == 1
    assert "doubling is computed without its kernel _doubling_kernel" in caplog.text


FAULTS: dict[str, Exception] = {
    "address": RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    "memory": RuntimeError("Triton Error [CUDA]: out of memory"),
    "assertion": RuntimeError("Triton Error [CUDA]: device-side assert triggered"),
    "launch": RuntimeError("Triton Error [CUDA]: unspecified launch failure"),
    "torch-memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "host-memory": MemoryError(),
    "fork": OSError(errno.ENOMEM, "Cannot allocate memory"),
    "argument": KernelInputError("x", "bfloat16", "int64"),
    "interpreter": InterpreterError("index 4 is out of bounds"),
    "other": RuntimeError("shapes do not fit"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_that_is_not_the_kernels_is_raised(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is no reason to take the twin, now or later."""
    errors = [FAULTS[name]]
    fallbacks, twin = Fallbacks(), Twin()
    kernel = Kernel(lambda _: errors.pop() if errors else None)
    double = doubling(fallbacks, kernel, twin)

    with pytest.raises(type(FAULTS[name])) as caught:
        double(ARGUMENTS)
    after = double(ARGUMENTS)

    assert caught.value is FAULTS[name]
    assert torch.equal(after, 2 * ARGUMENTS)
    assert (twin.num_calls, fallbacks.given_up, caplog.records) == (0, {}, [])


def short_of_memory(fits: int) -> Callable[[int], Exception | None]:
    """A GPU whose shared memory holds so many stages."""
    return lambda stages: OutOfResources(131_072, 101_376, "shared memory") if stages > fits else None


def test_kernel_short_of_shared_memory_runs_with_fewer_stages(caplog: pytest.LogCaptureFixture) -> None:
    """It stays a kernel, is not tried with more again, and nothing is counted as given up."""
    fallbacks, twin, kernel = Fallbacks(), Twin(), Kernel(short_of_memory(1))
    double = doubling(fallbacks, kernel, twin)

    answers = [double(ARGUMENTS) for _ in range(2)]

    assert all(torch.equal(answer, 2 * ARGUMENTS) for answer in answers)
    assert kernel.stages == [3, 2, 1, 1]
    assert (twin.num_calls, fallbacks.given_up, caplog.records) == (0, {}, [])


def test_kernel_that_does_not_fit_with_one_stage_gives_way(caplog: pytest.LogCaptureFixture) -> None:
    """After the last stage comes the twin, and the log says how much was wanted."""
    fallbacks, twin, kernel = Fallbacks(), Twin(), Kernel(short_of_memory(0))
    double = doubling(fallbacks, kernel, twin)

    assert torch.equal(double(ARGUMENTS), 2 * ARGUMENTS)
    assert kernel.stages == [3, 2, 1]
    assert fallbacks.given_up == {"doubling": 1}
    assert "Required: 131072, Hardware limit: 101376" in caplog.text


def test_other_form_of_a_kernel_is_not_given_up() -> None:
    """Only what it was compiled for is remembered, and the types that it met."""
    fallbacks, twin, kernel = Fallbacks(), Twin(), Kernel(lambda _: None)
    kernel.fails = lambda _: OutOfResources(1024, 512, "threads") if len(kernel.stages) == 1 else None
    double = doubling(fallbacks, kernel, twin)

    double(ARGUMENTS)
    assert torch.equal(double(torch.arange(8.0)), 2 * torch.arange(8.0))
    assert torch.equal(double(ARGUMENTS.double()), 2 * ARGUMENTS.double())
    assert len(kernel.stages) == 3
    assert torch.equal(double(ARGUMENTS), 2 * ARGUMENTS)
    assert len(kernel.stages) == 3
    assert (twin.num_calls, fallbacks.given_up) == (2, {"doubling": 1})


@pytest.mark.parametrize("kind", ["int4", "nf4", "int8", "fp8", "w8a8"])
def test_quantized_product_without_its_kernel_is_that_of_its_twin(kind: str) -> None:
    """Also of weights that are laid out for the kernel already. Here Triton finds no GPU."""
    generator = torch.Generator().manual_seed(1)
    dense, x, bias = (torch.randn(*size, generator=generator) for size in ((32, 128), (5, 128), (32,)))
    dtype = torch.bfloat16 if kind == "nf4" else torch.float32
    x, bias = x.to(dtype), bias.to(dtype)
    fallbacks = Fallbacks()
    if kind in ("int4", "nf4"):
        groups = quantize_nf4(dense, 64) if kind == "nf4" else quantize_int4(dense, 64)
        run, _ = Products(fallbacks)(groups, bias, dtype=dtype)
        expected, operation = w4a16_linear_reference(x, groups, bias), "w4a16"
    else:
        rows = quantize_w8(dense, torch.float8_e4m3fn if kind == "fp8" else torch.int8)
        run, _ = Products(fallbacks)(rows, bias, dtype=dtype, round_input=kind == "w8a8")
        operation = "w8a8" if kind == "w8a8" else "w8"
        expected = (w8a8_linear_reference if kind == "w8a8" else w8_linear_reference)(x, rows, bias)

    # The layout's table of NF4 has its numbers in the type of the rows.
    within = 0.02 if kind == "nf4" else 1e-5
    assert (run(x) - expected).abs().max() <= within * expected.abs().max()
    assert fallbacks.given_up == {operation: 1}
