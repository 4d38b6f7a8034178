"""The kernels' benchmark without a GPU: its arithmetic, bars, report, and peers. Times are measured by running it."""

from __future__ import annotations

import io
import json
import math

import pytest
import torch

from kernels.attention.cases import AttentionShape, build
from kernels.benchmark.__main__ import main
from kernels.benchmark.bars import BARS, Bar, BarKind, judge
from kernels.benchmark.figures import BenchmarkRun, Measurement
from kernels.benchmark.peers import peers_of, rope_store_plain
from kernels.benchmark.progress import Progress
from kernels.benchmark.report import as_json, as_text
from kernels.benchmark.timing import count_copies
from kernels.dispatch import load_ops, op_names
from kernels.exactness import complaint
from kernels.operation import Arguments, Op, Result
from kernels.paging import PAGE_SIZE
from tests.support.kernels.apart import needs_triton
from tests.support.kernels.kernel_errors import assert_close

COPY = 4000.0
"""GB/s."""
PLAIN = Measurement(op="norm", case="a", us=10.0, num_bytes=36_000_000, num_operations=500_000_000)
SLOW = Measurement(op="norm", case="b", us=20.0, num_bytes=36_000_000, peers_us={"liger": 25.0})
BROKEN = Measurement(op="norm", case="c", notes=("the kernel could not be measured: RuntimeError: no",))
RUN = BenchmarkRun(
    device={"GPU": "H200"},
    copy_gb_per_s=COPY,
    measurements=(PLAIN, SLOW, BROKEN),
    num_checked=7,
    problems=(("norm", "c", "off by 1"),),
)


def test_measurement_rates_are_of_what_it_cannot_do_without() -> None:
    """36 MB in 10 us are 3600 GB/s, half a billion operations 50 TFLOP/s; without a time there is no rate."""
    assert PLAIN.gb_per_s == pytest.approx(3600.0)
    assert PLAIN.tflop_per_s == pytest.approx(50.0)
    assert BROKEN.gb_per_s is None
    assert BROKEN.tflop_per_s is None


@pytest.mark.parametrize(
    ("bar", "value", "is_met"),
    [
        (Bar("norm", "a", BarKind.COPY, 0.85), 0.9, True),
        (Bar("norm", "a", BarKind.COPY, 0.91), 0.9, False),
        (Bar("norm", "a", BarKind.MICROSECONDS, 3.0), 10.0, False),
        (Bar("norm", "a", BarKind.TIME, 0.62, "b"), 0.5, True),
        (Bar("norm", "b", BarKind.TIME, 0.62, "a"), 2.0, False),
        (Bar("norm", "b", BarKind.TIME, 0.81, "liger"), 0.8, True),
        (Bar("norm", "b", BarKind.SPEED, 1.0, "liger"), 1.25, True),
        (Bar("norm", "b", BarKind.SPEED, 1.3, "liger"), 1.25, False),
        (Bar("norm", "b", BarKind.BYTE_TIME, 1.15, "a"), 2.0, False),
        (Bar("norm", "a", BarKind.SPEED, 1.0, "SDPA"), None, None),
        (Bar("norm", "a", BarKind.BYTE_TIME, 1.0, "c"), None, None),
        (Bar("norm", "c", BarKind.COPY, 0.5), None, None),
    ],
    ids=lambda value: value.text if isinstance(value, Bar) else "",
)
def test_judge_compares_with_what_the_bar_names(bar: Bar, value: float | None, is_met: bool | None) -> None:
    """Bandwidth, peers and other cases of the operation; what was not measured is neither met nor missed."""
    (verdict,) = judge([bar], RUN.measurements, COPY)

    assert verdict.value == (None if value is None else pytest.approx(value))
    assert verdict.is_met is is_met


def test_judge_leaves_out_what_was_not_asked_for() -> None:
    """A run of one operation is not told what it lacks of others."""
    assert judge(BARS, RUN.measurements, COPY) == []


def test_bar_texts_say_what_is_asked() -> None:
    """Sign, number, and what it is a factor of."""
    assert Bar("x", "y", BarKind.COPY, 0.8).text == ">= 0.8 x of copy bandwidth"
    assert Bar("x", "y", BarKind.SPEED, 2.8, "cuBLAS").text == ">= 2.8 x as fast as cuBLAS"
    assert Bar("x", "y", BarKind.TIME, 0.62, "bf16").text == "<= 0.62 x the time of bf16"
    assert Bar("x", "y", BarKind.MICROSECONDS, 3).text == "<= 3 us"


@needs_triton
def test_bars_name_real_cases_and_known_peers() -> None:
    """No bar is lost to a misspelt name: each is of a case that is timed, beside something that is timed."""
    cases = {(op.name, case.name): case for op in load_ops() for case in op.cases() if case.is_real}

    assert [bar for bar in BARS if (bar.op, bar.case) not in cases] == []
    for bar in BARS:
        if bar.other and (bar.op, bar.other) not in cases:
            arguments = cases[bar.op, bar.case].build(torch.device("meta"))
            assert bar.other in {"SDPA", "cuBLAS", "paged_decode", "torch.compile"}
            # Which lengths a step has is not known of tensors without numbers.
            if bar.other != "SDPA":
                assert bar.other in peers_of(bar.op, arguments, compiled=True)


@needs_triton
def test_op_names_are_those_of_the_operations() -> None:
    """What can be asked for by name is told without importing a kernel."""
    assert [op.name for op in load_ops()] == op_names()


def real_case(op_name: str, case_name: str) -> tuple[Op, Arguments, Arguments]:
    """The operation, and the case's arguments twice."""
    op = next(op for op in load_ops() if op.name == op_name)
    case = next(case for case in op.cases() if case.name == case_name)
    return op, case.build(torch.device("cpu")), case.build(torch.device("cpu"))


@needs_triton
def test_sdpa_as_a_peer_attends_to_the_same_keys() -> None:
    """The contiguous copy of the pages is in the order of the positions."""
    op, arguments, own = real_case("paged_decode", "8b-1x512")

    (work,) = peers_of("paged_decode", arguments, compiled=False)["SDPA"]([arguments])

    actual = work()
    assert isinstance(actual, torch.Tensor)
    assert_close(actual.transpose(1, 2).flatten(0, 1), op.reference(**own), slack=2)


@needs_triton
def test_plain_rotation_as_a_peer_stores_the_same() -> None:
    """What PyTorch's compiler is given turns and stores as the twin does."""
    op, arguments, own = real_case("rope_store", "8b-1")
    kv, plan = arguments["kv"], arguments["plan"]
    pages, places = plan.slots // PAGE_SIZE, plan.slots % PAGE_SIZE

    queries = rope_store_plain(
        arguments["qkv"], plan.cos_sin, kv.keys, kv.values, pages, places, arguments["num_heads"]
    )

    assert_close((queries, kv.keys, kv.values), op.reference(**own))


@needs_triton
@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("paged_decode", AttentionShape([(1, 128), (1, 256)])),
        ("paged_decode", AttentionShape([(4, 128)] * 2)),
        ("paged_prefill", AttentionShape([(128, 128)], window=16)),
    ],
    ids=["ragged", "drafts", "window"],
)
def test_sdpa_is_no_peer_where_it_cannot_do_the_same(op: str, shape: AttentionShape) -> None:
    """Ragged lengths, drafts and windows would need masks of another speed."""
    assert peers_of(op, build(shape, torch.device("cpu")), compiled=True) == {}


@needs_triton
def test_compiled_peers_only_where_asked_for() -> None:
    """What compiles for seconds is left out of cases that no bar is about."""
    arguments = {"quantized": None, "residual": None}

    assert set(peers_of("norm", arguments, compiled=True)) - set(peers_of("norm", arguments, compiled=False)) == {
        "torch.compile"
    }


def test_count_copies_outgrows_the_cache() -> None:
    """Small buffers are copied, large ones are not, and there is an end to it."""
    cache = 50 * 2**20

    assert count_copies(2**30, cache) == 1
    assert 10 * 2**20 * count_copies(10 * 2**20, cache) >= 2 * cache
    assert count_copies(0, cache) == count_copies(1, cache) == 32


def test_report_shows_figures_bars_and_what_is_wrong() -> None:
    """A line for each case with its share of the copy, its peers and its bars under it."""
    verdicts = judge(
        [Bar("norm", "a", BarKind.COPY, 0.85), Bar("norm", "b", BarKind.SPEED, 1.3, "liger")], RUN.measurements, COPY
    )

    lines = as_text(RUN, verdicts).splitlines()

    assert lines[0] == "GPU H200"
    assert [line.split() for line in lines if line.startswith("norm a")] == [["norm", "a", "10.0", "3600", "50", "90%"]]
    after = lines.index(next(line for line in lines if line.startswith("norm b")))
    assert lines[after].endswith("liger 1.25 x the time")
    assert lines[after - 1].strip() == ">= 0.85 x of copy bandwidth: 0.90, met"
    assert lines[after + 1].strip() == ">= 1.3 x as fast as liger: 1.25, MISSED"
    assert "Bars, made for an H200: 1 met, 1 missed, 0 not measured." in lines
    assert lines[-1] == "WRONG norm c: off by 1"


def test_report_as_json_has_all_of_it() -> None:
    """Programs read the same figures, with rates and verdicts."""
    verdicts = judge(
        [Bar("norm", "a", BarKind.COPY, 0.85), Bar("norm", "c", BarKind.COPY, 0.85)], RUN.measurements, COPY
    )

    read = json.loads(as_json(RUN, verdicts))

    assert [entry["us"] for entry in read["measurements"]] == [10.0, 20.0, None]
    assert read["measurements"][0]["gb_per_s"] == pytest.approx(3600.0)
    assert read["measurements"][1]["peers_us"] == {"liger": 25.0}
    assert [entry["is_met"] for entry in read["bars"]] == [True, None]
    assert read["problems"] == [{"op": "norm", "case": "c", "problem": "off by 1"}]
    assert read["copy_gb_per_s"] == COPY


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Always."""
        return True


def test_progress_on_a_terminal_is_a_bar_that_leaves_nothing() -> None:
    """The line is drawn over at each step and emptied at the end."""
    stream = Terminal()

    with Progress(2, stream=stream) as progress:
        progress.step("one")
        progress.step("two")

    drawn = stream.getvalue().split("\r\x1b[K")
    assert drawn[1] == f"[{'#' * 15}{'-' * 15}] 1/2 one"
    assert drawn[2] == f"[{'#' * 30}] 2/2 two"
    assert drawn[-1] == ""


def test_progress_in_a_log_is_few_lines() -> None:
    """The first and the last step are told, and others only now and then."""
    stream = io.StringIO()

    with Progress(1000, stream=stream) as progress:
        for number in range(1000):
            progress.step(f"step {number}")

    lines = stream.getvalue().splitlines()
    assert [line.split("] ")[1] for line in lines] == ["1/1000 step 0", "1000/1000 step 999"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_benchmark_without_a_gpu_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and where to go instead."""
    assert main([]) == 2

    assert "no CUDA GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("actual", "exact", "said"),
    [
        (torch.ones(3), torch.ones(3), None),
        (torch.tensor([1, math.inf]), torch.tensor([1, math.inf]), None),
        (torch.ones(3), torch.ones(2), "of shape"),
        (torch.ones(1), (torch.ones(1), torch.ones(1)), "1 tensors instead of 2"),
        (torch.tensor([1.0, 1.1]), torch.ones(2), "an entry is off by 0.1"),
        (torch.tensor([1.0, math.nan]), torch.ones(2), "off by nan"),
        (torch.tensor([math.inf]), torch.ones(1), "off by inf"),
        (torch.tensor([5]), torch.tensor([6]), "0 is allowed"),
        (torch.ones(4).bfloat16() * 1.01, torch.ones(4), "off by 0.0078, 0.004"),
        ((torch.ones(1), torch.zeros(1)), (torch.ones(1), torch.ones(1)), "off by 1"),
    ],
)
def test_complaint_says_what_is_wrong(actual: Result, exact: Result, said: str | None) -> None:
    """Every tensor counts, by the bounds of its own type; NaN is never right."""
    told = complaint(actual, exact)

    assert told is None if said is None else told is not None and said in told


def test_complaint_a_wider_rounding_widens_the_bounds_of_floats_alone() -> None:
    """What passed through bfloat16 may be off by as much; a count may not."""
    off = torch.tensor([1.0, 1.003])

    assert complaint(off, torch.ones(2)) is not None
    assert complaint(off, torch.ones(2), rounding=torch.bfloat16) is None
    assert complaint(torch.tensor([1]), torch.tensor([2]), rounding=torch.bfloat16) is not None
