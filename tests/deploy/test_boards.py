"""The Grafana boards: what is committed is what is generated, and asks for metrics that the gateway has."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from prometheus_client import CollectorRegistry

from gateway.metrics.metrics import Metrics

GRAFANA = Path(__file__).parents[2] / "deploy" / "grafana"
_SELECTOR = re.compile(r"\b((?:slipstream_|vllm:|process_)\w+)(?:\{([^}]*)\})?")


def module(name: str) -> ModuleType:
    """One of the scripts beside the boards."""
    spec = importlib.util.spec_from_file_location(name, GRAFANA / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def metrics_of() -> dict[str, set[str]]:
    """The labels of each series that the gateway can show, by its name."""
    known: dict[str, set[str]] = {}
    for metric in (metric for group in Metrics(CollectorRegistry()).groups for metric in group.metrics):
        labels = set(metric._labelnames)
        if metric._type == "histogram":
            known |= {f"{metric._name}_{suffix}": labels for suffix in ("sum", "count")}
            known[f"{metric._name}_bucket"] = labels | {"le"}
        else:
            known[metric._name + "_total" * (metric._type == "counter")] = labels
    return known


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """Each series that an expression asks for, and the labels by which it selects."""
    found = _SELECTOR.findall(expression)
    return [(name, set(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", labels))) for name, labels in found]


def test_boards_are_those_that_are_generated() -> None:
    """Nobody edits the JSON: `python deploy/grafana/generate.py` writes it."""
    boards, generate = module("boards"), module("generate")
    written = {path.stem: path.read_text(encoding="utf-8") for path in (GRAFANA / "dashboards").iterdir()}

    assert written == {board.name: generate.board_json(board) for board in boards.BOARDS}


def test_boards_ask_for_metrics_and_labels_that_there_are() -> None:
    """A renamed metric would leave a panel that stays empty."""
    known = metrics_of()
    for board in module("boards").BOARDS:
        for query in (query for panel in board.panels for query in panel.queries):
            asked = selectors(query.expression)

            assert asked, query.expression
            for name, labels in asked:
                assert name in known, f"{name} on the board {board.name}"
                assert labels <= known[name], f"labels of {name} on the board {board.name}"
