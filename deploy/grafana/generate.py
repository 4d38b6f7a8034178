"""Makes the JSON of the Grafana boards from `boards.py`: `python deploy/grafana/generate.py` rewrites dashboards/."""

from __future__ import annotations

import sys
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
)

sys.path.insert(0, str(Path(__file__).parent))

from boards import BOARDS, Board, Panel

FOLDER = Path(__file__).with_name("dashboards")
_SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
_HEIGHT = 8
_SPAN = 12
"""Of the 24 columns of Grafana's grid."""


def board_json(board: Board) -> str:
    """The file of a board, as Grafana reads it from a folder."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(f"slipstream-{board.name}")
        .tags(["slipstream"])
        .editable()
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus"))
    )
    for name, query in board.variables:
        everything = VariableOption(text="All", value="$__all")
        made.with_variable(
            dashboard.QueryVariable(name)
            .query(query)
            .datasource(_SOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .include_all(True)
            .all_value(".*")
            .multi(True)
            .current(everything)
        )
    for number, panel in enumerate(board.panels, start=1):
        made.with_panel(_panel(number, panel))
    return JSONEncoder(sort_keys=True, indent=1).encode(made.build()) + "\n"


def _panel(number: int, panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .id(number)
        .title(panel.title)
        .unit(panel.unit)
        .datasource(_SOURCE)
        .height(_HEIGHT)
        .span(_SPAN)
        .min(0)
        .fill_opacity(0)
        .line_width(2)
    )
    for letter, query in zip("ABCDEF", panel.queries, strict=False):
        made.with_target(
            prometheus.Dataquery().ref_id(letter).expr(query.expression).legend_format(query.legend).datasource(_SOURCE)
        )
    return made


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in BOARDS:
        (FOLDER / f"{each.name}.json").write_text(board_json(each), encoding="utf-8")
