"""What kernels refuse, and what they say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kernels.attention.cases import AttentionShape, build
from kernels.attention.checks import check_attention
from kernels.checks import KernelInputError
from kernels.operation import Arguments

CPU = torch.device("cpu")


def arguments_of(shape: AttentionShape) -> Arguments:
    """What `check_attention` takes."""
    arguments = build(shape, CPU)
    del arguments["scale"]
    return arguments


PLAIN = AttentionShape([(1, 100), (2, 30)])
INT8 = replace(PLAIN, dtype=torch.bfloat16, kv_dtype=torch.int8)


@pytest.mark.parametrize("shape", [PLAIN, INT8, replace(INT8, is_gapped=True), AttentionShape([(0, 0)])])
def test_check_attention_right_arguments_pass(shape: AttentionShape) -> None:
    """Packed or not, quantized or not, or nothing at all."""
    check_attention(**arguments_of(shape))


def with_kv(**changes: Callable[[torch.Tensor], object]) -> Callable[[Arguments], Arguments]:
    """Changes tensors of the pages."""

    def changed(arguments: Arguments) -> Arguments:
        kv = arguments["kv"]
        return arguments | {"kv": replace(kv, **{name: change(getattr(kv, name)) for name, change in changes.items()})}

    return changed


def with_plan(**changes: object) -> Callable[[Arguments], Arguments]:
    """Changes fields of the plan; a function is given the field."""

    def changed(arguments: Arguments) -> Arguments:
        plan = arguments["plan"]
        values = {name: change(getattr(plan, name)) if callable(change) else change for name, change in changes.items()}
        return arguments | {"plan": replace(plan, **values)}

    return changed


@pytest.mark.parametrize(
    ("change", "argument", "expected"),
    [
        (lambda given: given | {"q": given["q"].double()}, "q", "bfloat16 or float16 or float32, not float64"),
        (lambda given: given | {"q": given["q"].bfloat16()}, "kv.keys", "bfloat16, not float32"),
        (lambda given: given | {"q": given["q"][0]}, "q", r"shape \[any, any, any\]"),
        (lambda given: given | {"q": given["q"][:, :3]}, "q", "multiple of 2 heads, not 3 heads"),
        (lambda given: given | {"q": given["q"][..., :8]}, "q", "stride 8 in dimension 1, not 16"),
        (lambda given: given | {"q": given["q"].to("meta")}, "kv.keys", "on meta, not cpu"),
        (lambda given: given | {"window": -1}, "window", "0 or more, not -1"),
        (lambda given: given | {"softcap": -2.0}, "softcap", "0 or more"),
        (with_kv(keys=lambda keys: keys[..., :8]), "kv.keys", r"\[any, any, 64, 16\], not \[.*, 8\]"),
        (with_kv(keys=lambda keys: keys.transpose(2, 3).contiguous().transpose(2, 3)), "kv.keys", "without gaps"),
        (with_kv(values=lambda values: values.half()), "kv.values", "float32, not float16"),
        (with_kv(values=lambda values: values.repeat(1, 2, 1, 1)[:, :2]), "kv.values", "strided as the keys"),
        (with_kv(keys=lambda keys: keys.to(torch.int8)), "kv.keys", "float32, not int8"),
        (with_plan(page_table=lambda table: table.long()), "plan.page_table", "int32, not int64"),
        (with_plan(page_table=lambda table: table[:1]), "plan.page_table", r"\[2, any\]"),
        (with_plan(page_table=lambda table: table + 1000), "plan.page_table", "page ids below"),
        (with_plan(page_table=lambda table: table - 1), "plan.page_table", "from 0 on, not -1"),
        (with_kv(keys=lambda keys: keys[:, :0], values=lambda values: values[:, :0]), "kv.keys", "one head or more"),
        (lambda given: given | {"q": given["q"][:, :0]}, "q", "one head or more"),
        (with_plan(query_starts=lambda starts: starts[:-1]), "plan.query_starts", r"\[3\], not \[2\]"),
        (with_plan(query_starts=lambda starts: starts + 1), "plan.query_starts", "from 0 to 3, the rows of q, not"),
        (with_plan(query_starts=lambda starts: starts.flip(0)), "plan.query_starts", "from 0 to 3, the rows of q, not"),
        (with_plan(max_query=1), "plan.max_query", "2 or more, the most queries of a sequence, not 1"),
        (with_plan(kv_lengths=lambda lengths: -lengths), "plan.kv_lengths", "0 or more, not -100"),
        (with_plan(kv_lengths=lambda lengths: lengths + 20), "plan.kv_lengths", "at most plan.max_kv, 100, not 120"),
        (with_plan(max_kv=1000), "plan.max_kv", "from 0 to 128, what the page table holds, not 1000"),
        (with_plan(max_query=9), "plan.max_query", "from 0 to 3, not 9"),
    ],
)
def test_check_attention_wrong_argument_is_named(
    change: Callable[[Arguments], Arguments], argument: str, expected: str
) -> None:
    """The message names the argument, what it must be and what it is."""
    with pytest.raises(KernelInputError, match=expected) as caught:
        check_attention(**change(arguments_of(PLAIN)))

    assert caught.value.argument == argument
    assert str(caught.value).startswith(f"{argument} must be ")


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        (with_kv(value_scales=lambda _: None), "kv.value_scales"),
        (with_kv(key_scales=lambda scales: scales.float()), "kv.key_scales"),
        (with_kv(key_scales=lambda scales: scales[:1]), "kv.key_scales"),
        (with_kv(value_scales=lambda scales: scales.repeat(1, 2, 1)[:, :2]), "kv.value_scales"),
        (with_kv(keys=lambda keys: keys.bfloat16()), "kv.keys"),
    ],
)
def test_check_attention_wrong_scales_are_named(change: Callable[[Arguments], Arguments], argument: str) -> None:
    """Scales come in pairs, as half precision, one a token and head, with pages of eight bits."""
    with pytest.raises(KernelInputError) as caught:
        check_attention(**change(arguments_of(INT8)))

    assert caught.value.argument == argument
