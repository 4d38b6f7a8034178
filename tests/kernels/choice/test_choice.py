"""The kernels that choose tokens: their twins by the same cases, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from kernels.checks import KernelInputError
from kernels.choice.cases import (
    ChoiceShape,
    build_probabilities,
    build_reject,
    probabilities_cases,
    reject_cases,
    sample_cases,
)
from kernels.choice.checks import check_rejection, check_sampling
from kernels.choice.exactness import probabilities_complaint, sample_complaint
from kernels.choice.reject import reject_reference
from kernels.choice.sample import probabilities_reference, sample_with_logprobs_reference
from kernels.exactness import complaint, for_twin
from kernels.operation import Arguments, Case, Result

CPU = torch.device("cpu")


def reject_complaint(arguments: Arguments, actual: Result) -> str | None:
    """Counts and tokens have to be equal."""
    return complaint(actual, reject_reference(**arguments))


twin_sample_complaint = partial(sample_complaint, slack=4.0)
twin_probabilities_complaint = partial(probabilities_complaint, divides_first=True)
TWINS = {
    f"{name}-{case.name}": (said, twin, case)
    for name, said, twin, cases in (
        ("sample", twin_sample_complaint, sample_with_logprobs_reference, sample_cases()),
        ("probabilities", twin_probabilities_complaint, probabilities_reference, probabilities_cases()),
        ("reject", reject_complaint, reject_reference, reject_cases()),
    )
    for case in cases
    if not case.is_real
}
PLAIN = ChoiceShape(
    3,
    40,
    temperature=(0.0, 1.0),
    top_k=(5,),
    top_p=(0.9,),
    min_p=(0.1,),
    penalties=((1.2, 0.5, 0.5), (1.0, 0.0, 0.0)),
)


@pytest.mark.parametrize(("said", "twin", "case"), TWINS.values(), ids=TWINS.keys())
def test_twin_equals_itself_in_float64(
    said: Callable[[Arguments, Result], str | None], twin: Callable[..., Result], case: Case
) -> None:
    """The same tokens, and numbers within float32's rounding, as closely as the kernels are held to."""
    arguments = case.build(CPU)

    assert said(for_twin(arguments, exact=True), twin(**arguments)) is None


@pytest.mark.parametrize("shape", [PLAIN, ChoiceShape(0, 5), ChoiceShape(2, 1), replace(PLAIN, is_gapped=True)])
def test_check_sampling_right_arguments_pass(shape: ChoiceShape) -> None:
    """With filters or without, packed or not, or no rows at all."""
    check_sampling(**build_probabilities(shape, CPU))


def with_rows(**changes: Callable[[Any], Any]) -> Callable[[Arguments], Arguments]:
    """Changes fields of the rows."""

    def changed(arguments: Arguments) -> Arguments:
        rows = arguments["rows"]
        return arguments | {
            "rows": replace(rows, **{name: change(getattr(rows, name)) for name, change in changes.items()})
        }

    return changed


def with_penalties(**changes: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Arguments], Arguments]:
    """Changes fields of the rows' penalties."""

    def changed(penalties: Any) -> Any:
        return replace(penalties, **{name: change(getattr(penalties, name)) for name, change in changes.items()})

    return with_rows(penalties=changed)


def with_tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Arguments], Arguments]:
    """Changes a tensor."""
    return lambda arguments: arguments | {name: change(arguments[name])}


@pytest.mark.parametrize(
    ("change", "argument", "expected"),
    [
        (with_tensor("logits", lambda logits: logits.half()), "logits", "float32, not float16"),
        (with_tensor("logits", lambda logits: logits[0]), "logits", r"shape \[any, any\]"),
        (with_tensor("logits", lambda logits: logits.T.contiguous().T), "logits", "without gaps"),
        (with_tensor("logits", lambda logits: logits[:, :0]), "logits", "one entry a row or more"),
        (with_tensor("logits", lambda logits: logits.to("meta")), "rows.seeds", "on meta, not cpu"),
        (with_rows(seeds=lambda seeds: seeds.int()), "rows.seeds", "int64, not int32"),
        (with_rows(seeds=lambda seeds: seeds[:2]), "rows.seeds", r"\[3\], not \[2\]"),
        (with_rows(positions=lambda positions: -1 - positions), "rows.positions", "from 0 to 4294967295"),
        (with_rows(temperature=lambda values: values.double()), "rows.temperature", "float32, not float64"),
        (with_rows(temperature=lambda values: values * 0), "rows.temperature", "above 0, not 0"),
        (with_rows(top_k=lambda values: values * 0), "rows.top_k", "from 1 to 40, not 0"),
        (with_rows(top_k=lambda values: values + 40), "rows.top_k", "from 1 to 40, not 45"),
        (with_rows(top_p=lambda values: values + 1), "rows.top_p", "from 0 to 1, not 1.8"),
        (with_rows(min_p=lambda values: values - 1), "rows.min_p", "from 0 to 1, not -0.8"),
        (with_rows(is_greedy=lambda values: values.int()), "rows.is_greedy", "bool, not int32"),
        (with_penalties(seen=lambda seen: seen.long()), "rows.penalties.seen", "int32, not int64"),
        (with_penalties(seen=lambda seen: seen[:, :39]), "rows.penalties.seen", r"\[any, 40\], not \[2, 39\]"),
        (with_penalties(seen=lambda seen: seen.T.contiguous().T), "rows.penalties.seen", "without gaps"),
        (with_penalties(texts=lambda texts: texts + 2), "rows.penalties.texts", "from -1 to 1, not 2"),
        (with_penalties(texts=lambda texts: texts - 1), "rows.penalties.texts", "from -1 to 1, not -2"),
        (with_penalties(presence=lambda values: values[:2]), "rows.penalties.presence", r"\[3\], not \[2\]"),
        (with_penalties(repetition=lambda values: values - 1), "rows.penalties.repetition", "above 0, not 0"),
    ],
)
def test_check_sampling_wrong_argument_is_named(
    change: Callable[[Arguments], Arguments], argument: str, expected: str
) -> None:
    """The message names the argument, what it must be and what it is."""
    with pytest.raises(KernelInputError, match=expected) as caught:
        check_sampling(**change(build_probabilities(PLAIN, CPU)))

    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("change", "argument", "expected"),
    [
        (with_tensor("probs", lambda probs: probs.double()), "probs", "float32, not float64"),
        (with_tensor("probs", lambda probs: probs[:, ::2]), "probs", "without gaps"),
        (with_tensor("draft_probs", lambda probs: probs[:2]), "draft_probs", r"\[3, 40\], not \[2, 40\]"),
        (with_tensor("drafts", lambda drafts: drafts.int()), "drafts", "int64, not int32"),
        (with_tensor("drafts", lambda drafts: drafts + 40), "drafts", "from 0 to 39"),
        (with_tensor("row_starts", lambda starts: starts.flip(0)), "row_starts", "rising from 0 to 5"),
        (with_tensor("row_starts", lambda starts: starts - 1), "row_starts", "rising from 0 to 5"),
        (with_tensor("row_starts", lambda starts: starts.repeat(3)), "row_starts", "of 1 to 6 numbers, not 9"),
        (with_rows(positions=lambda positions: positions[:1]), "rows.positions", r"\[5\], not \[1\]"),
    ],
)
def test_check_rejection_wrong_argument_is_named(
    change: Callable[[Arguments], Arguments], argument: str, expected: str
) -> None:
    """The message names the argument, what it must be and what it is."""
    arguments = build_reject((2, 1), 40, 1.0, 1.0, CPU)
    check_rejection(**arguments)

    with pytest.raises(KernelInputError, match=expected) as caught:
        check_rejection(**change(arguments))

    assert caught.value.argument == argument
