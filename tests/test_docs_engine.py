"""The page on models in this process: its tables and its example are those of the code."""

from __future__ import annotations

import shlex
from typing import get_args

from click.testing import CliRunner

from backends.engine.model.config import FAMILIES
from backends.engine.model.linear import QUANTIZATIONS
from backends.engine.model.quantized_formats import READ_BITS
from backends.engine.options import EngineOptions, Quantization, Speculate
from gateway.cli.main import cli
from gateway.cli.models.model_folder import METHODS
from kernels.paging import PAGE_SIZE
from tests.support.docs import blocks, page, table


def first_cells(first: str) -> list[str]:
    """The first column of the page's table whose head begins so."""
    return [row[0].strip("`") for row in table("docs/engine.md", first)]


def test_docs_engine_architectures_are_those_of_the_code() -> None:
    """Every family that is served is listed, and no other."""
    assert first_cells("architecture") == list(FAMILIES)


def test_docs_engine_methods_are_those_of_the_code() -> None:
    """Every quantization is described; the commands, the settings and the engine know the same ones."""
    assert first_cells("method") == list(METHODS)
    assert set(METHODS) == set(QUANTIZATIONS) == set(get_args(Quantization))


def test_docs_engine_speculation_is_that_of_the_code() -> None:
    """Every mode is described, and the limits are the engine's."""
    fields = EngineOptions.__dataclass_fields__
    text = " ".join(page("docs/engine.md").split())

    assert first_cells("`speculate`") == list(get_args(Speculate))
    assert fields["max_draft"].default == 6
    assert "At most six tokens are proposed" in text
    assert f"in steps of more than {fields['speculate_below'].default} answers" in text
    assert f"pages of {PAGE_SIZE} tokens" in text


def test_docs_engine_packed_formats_are_those_that_are_read() -> None:
    """Which bits of whose format can be served."""
    assert READ_BITS == {"gptq": (4, 3), "awq": (4,)}
    assert "GPTQ (3 or 4 bits) or AWQ\n(4 bits)" in page("docs/engine.md")


def test_docs_engine_example_is_what_the_command_prints() -> None:
    """The table in the page is that of the command above it."""
    [example] = [block.text for block in blocks("console") if block.place.startswith("docs/engine.md")]
    command, _, shown = example.partition("\n")
    program, *arguments = shlex.split(command.removeprefix("$ "))

    assert program == "slipstream"
    assert CliRunner().invoke(cli, arguments).output == shown
