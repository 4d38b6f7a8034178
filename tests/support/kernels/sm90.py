"""What a launch becomes on an H100 or H200: compiled with the real assembler, without a GPU."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.jit import Launch

TARGET = GPUTarget("cuda", 90, 32)
REGISTERS_PER_SM = 65_536
SHARED_BYTES_PER_SM = 228 * 1024
SHARED_BYTES_KEPT = 1024
"""Of each block's shared memory, for the system."""
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int8: "*i8",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
}


@dataclass(frozen=True, slots=True)
class MachineCode:
    """`stack_bytes` is what registers were spilled to, per thread. `instructions` counts by name, without modifiers.

    Where the configuration claims none and nothing is spilled, they are not looked at, and there are none.
    """

    num_registers: int
    stack_bytes: int
    shared_bytes: int
    instructions: Counter[str]


@dataclass(frozen=True, slots=True)
class Variant:
    """What the compiler is told of a launch: as the launch itself would, from types, alignment and ones."""

    signature: dict[str, str]
    constants: dict[str, object]
    aligned: list[str]

    @classmethod
    def of(cls, launch: Launch) -> Variant:
        """Memory is taken to be aligned, so that a tensor is unless it begins further behind."""
        signature: dict[str, str] = {}
        constants: dict[str, object] = {}
        aligned = []
        for parameter in launch.kernel.params:  # type: ignore[attr-defined]
            name, value = parameter.name, launch.arguments[parameter.name]
            is_varying = parameter.do_not_specialize
            if parameter.is_constexpr or value is None or (isinstance(value, int) and value == 1 and not is_varying):
                signature[name], constants[name] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[name] = _POINTERS[value.dtype]
                is_aligned = value.storage_offset() * value.element_size() % 16 == 0
                aligned += [name] if is_aligned and not is_varying else []
            elif isinstance(value, float):
                signature[name] = "fp32"
            else:
                assert isinstance(value, int)
                signature[name] = "i32" if value < 2**31 else "i64"
                aligned += [name] if value % 16 == 0 and not is_varying else []
        return cls(signature, constants, aligned)


def compile_for_sm90(launch: Launch, folder: Path) -> MachineCode:
    """The launch's machine code; `folder` is for its files."""
    variant = Variant.of(launch)
    names = list(variant.signature)
    source = ASTSource(
        fn=launch.kernel,
        signature=variant.signature,
        constexprs=variant.constants,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in variant.aligned},
    )
    options = {"num_warps": launch.config.num_warps, "num_stages": launch.config.num_stages}
    compiled: Any = triton.compile(source, target=TARGET, options=options)
    path = folder / "kernel.cubin"
    path.write_bytes(compiled.asm["cubin"])
    usage = re.search(r"REG:(\d+) STACK:(\d+)", _said("cuobjdump", "--dump-resource-usage", path))
    assert usage is not None
    num_registers, stack_bytes = int(usage[1]), int(usage[2])
    # Half of the gate's time would go to reading code of which nothing is claimed.
    is_read = bool(launch.config.instructions or stack_bytes)
    code = _said("nvdisasm", "--no-dataflow", path) if is_read else ""
    # A line of code is an address in comment signs, perhaps a predicate, and the instruction.
    instructions = re.findall(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)", code, re.M)
    return MachineCode(num_registers, stack_bytes, compiled.metadata.shared, Counter(instructions))


def _said(tool: str, *arguments: str | Path) -> str:
    return subprocess.run([_TOOLS / tool, *arguments], capture_output=True, text=True, check=True).stdout
