"""The pages that people read: examples load, commands exist, links lead somewhere, nothing is missing from an index."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from backends.http.openai_settings import presets
from gateway.cli.config.reference import with_settings
from gateway.cli.loading import read_policy
from gateway.cli.main import cli
from gateway.record.access_log import LogLine
from policies.schema import BackendPolicy
from tests.support.architecture_map import with_generated
from tests.support.docs import ROOT, Block, anchors, blocks, code_spans, links, page, pages, table, whole_policy

POLICY_FILES = [*(ROOT / "policies" / "presets").glob("*.yaml"), ROOT / "deploy" / "policy.yaml"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BUILT_IN = tuple(PROJECT["project"]["entry-points"]["slipstream.backends"])
_STANDS_FOR = re.compile(r"\b(?:NAME|ROOM)\b")
_PROMPT = re.compile(r"^(?:\$ )?(?:\w+=\S+ )*(?:.*\| )?(?:\S*/)?slipstream ")


def by_place(value: object) -> str:
    """Names a test by the place it is about."""
    return value.place if isinstance(value, Block) else value.name if isinstance(value, Path) else str(value)


@pytest.mark.parametrize("block", blocks("yaml"), ids=by_place)
def test_docs_policy_example_loads(block: Block, tmp_path: Path) -> None:
    """Every policy file in the documentation, and every excerpt of one, is valid."""
    path = tmp_path / "policy.yaml"
    path.write_text(whole_policy(block.text), encoding="utf-8")

    loaded = read_policy(path, no_env=True)

    assert loaded.warnings == () or "version:" not in block.text


@pytest.mark.parametrize("path", POLICY_FILES, ids=by_place)
def test_docs_policy_file_loads(path: Path) -> None:
    """Every policy file to start from is valid, has nothing to warn of, and begins by saying what it is for."""
    assert read_policy(path, no_env=True).warnings == ()
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("block", blocks("python"), ids=by_place)
def test_docs_python_example_compiles_with_real_imports(block: Block) -> None:
    """Every Python example is valid, and what it imports is there."""
    tree = ast.parse(block.text)

    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
        elif isinstance(node, ast.Import):
            assert all(importlib.import_module(alias.name) for alias in node.names)


def commands() -> list[Block]:
    """Every call of `slipstream` in the documentation and in the help itself."""
    context = click.Context(cli)
    helps = [Block(f"{name} --help", cli.get_command(context, name).help or "") for name in cli.list_commands(context)]
    helps.append(Block("--help", cli.get_help(context).replace("$ ", "")))
    found = []
    for block in (*blocks("sh", "console", ""), *code_spans(), *helps):
        for line in block.text.splitlines():
            match = _PROMPT.match(line.strip())
            if match is not None:
                found.append(Block(block.place, line.strip()[match.end() :]))
    return found


def called(group: click.Group, words: Sequence[str]) -> tuple[click.Command, list[str]]:
    """The command that these words name, and the arguments left for it."""
    if words[0].startswith("-"):
        return group, list(words)
    context = click.Context(group)
    command = group.get_command(context, words[0])
    assert command is not None, f"there is no command {words[0]}"
    return called(command, words[1:]) if isinstance(command, click.Group) and words[1:] else (command, list(words[1:]))


@pytest.mark.parametrize("block", commands(), ids=by_place)
def test_docs_command_exists_with_its_options(block: Block) -> None:
    """Every `slipstream` command that the documentation shows is one, and takes the options shown."""
    words = shlex.split(block.text, comments=True)
    words = words[: next((index for index, word in enumerate(words) if word in (">", "|", "&")), len(words))]

    command, arguments = called(cli, words)

    command.make_parser(click.Context(command)).parse_args(arguments)


def test_docs_make_targets_exist() -> None:
    """Every `make` command that the documentation shows has its target."""
    lines = [line for block in blocks("sh", "console") for line in block.text.splitlines()]
    shown = {match[1] for line in lines if (match := re.match(r"make (\w+)", line))}
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))

    assert {"serve", "test"} <= shown <= targets


def test_docs_links_lead_somewhere() -> None:
    """Every link to a file of the repository finds it, and its heading."""
    broken = []
    for path, target in links():
        name, _, anchor = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(f"{path.relative_to(ROOT)}: {target}")

    assert broken == []


def test_docs_pages_named_in_the_code_exist() -> None:
    """A message or help text that sends people to a page sends them to one that is there."""
    sources = [path for top in ("backends", "policies", "gateway") for path in (ROOT / top).rglob("*.py")]
    named = {name for path in sources for name in re.findall(r"docs/[\w./-]+\.md", path.read_text(encoding="utf-8"))}

    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_docs_files_and_programs_that_are_named_exist() -> None:
    """Every path of the tree that a page names leads somewhere, and so does every `python -m tests. ...`."""
    missing = []
    for path in pages():
        text = path.read_text(encoding="utf-8")
        named = re.findall(r"(?<![\w/.-])((?:gateway|policies|backends|kernels|tests|deploy)/[\w/.*-]*\w)", text)
        modules = re.findall(r"python -m (tests(?:\.\w+)+)\b(?!\.…)", text)
        places = {*named, *(f"{module.replace('.', '/')}.py" for module in modules)}
        missing += [
            f"{path.name}: {place}" for place in places if not _STANDS_FOR.search(place) and not list(ROOT.glob(place))
        ]

    assert missing == []


def test_docs_index_names_every_page() -> None:
    """The index links to every page below docs/, and decisions are numbered without a gap."""
    folder = ROOT / "docs"
    linked = {(path.parent / target).resolve() for path, target in links() if path == folder / "README.md"}
    decisions = sorted(path.name for path in (folder / "decisions").glob("*.md"))

    assert {path for path in folder.rglob("*.md") if path.name != "README.md"} == {
        p for p in linked if p.suffix == ".md"
    }
    assert [name[:3] for name in decisions] == [f"{number:03}" for number in range(1, len(decisions) + 1)]


def test_docs_architecture_is_current() -> None:
    """The picture has every stage, the map every folder of the tree with what it says of itself (`make docs`)."""
    text = page("docs/architecture.md")

    assert with_generated(text) == text


def test_docs_backend_settings_are_current() -> None:
    """The settings of the built-in types of backends are those of the code."""
    text = page("docs/backends.md")

    assert text.count("<!-- settings of ") == 8
    assert with_settings(text) == text, "docs/backends.md is out of date: run `slipstream config docs`"


def test_docs_types_of_backends_are_named_wherever_they_are_listed() -> None:
    """The schema, the page on backends, the index and the architecture name every type that is built in."""
    described = {row[0].partition("]")[0].strip("[`") for row in table("docs/backends.md", "`type`")}
    listings = {
        "policies/schema.py": BackendPolicy.model_fields["type"].description or "",
        "docs/README.md": next(line for line in page("docs/README.md").splitlines() if "(backends.md)" in line),
        "docs/architecture.md": next(
            line for line in page("docs/architecture.md").splitlines() if line.lstrip().startswith("leaf ")
        ),
    }

    assert described == set(BUILT_IN)
    for place, listing in listings.items():
        assert [name for name in BUILT_IN if name not in listing] == [], place


def test_docs_extras_are_all_described() -> None:
    """The page that says how to install has a row for every extra but that of developers, and names every package."""
    extras = {row[0].strip("`") for row in table("docs/getting-started.md", "extra")}
    [sentence] = re.findall(r"in an environment of its own: .*?\.\n", page("docs/getting-started.md"), re.DOTALL)

    assert extras == set(PROJECT["project"]["optional-dependencies"]) - {"dev"}
    assert set(re.findall(r"`(\w+)`", sentence)) == set(
        PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    )


def test_docs_presets_are_all_described() -> None:
    """The table of presets has each of them with its address, and the README counts them right."""
    described = {row[0].strip("`"): row[1].strip("`") for row in table("docs/backends.md", "preset")}

    assert described == {name: settings.get("base_url", "") for name, settings in presets().items()}
    assert f"{len(described)} presets" in page("README.md")


def test_readme_shows_a_command_within_25_lines_and_a_short_policy() -> None:
    """The first screen has what to type; the one policy is short."""
    lines = page("README.md").splitlines()
    policy = next(block.text for block in blocks("yaml") if block.place.startswith("README.md"))

    assert next(number for number, line in enumerate(lines, 1) if line.startswith("make serve")) <= 25
    assert len(policy.splitlines()) <= 12


def test_readme_shows_a_session_that_can_be_repeated(tmp_path: Path) -> None:
    """The policy file that its first session prints is valid, and the lines of the log have fields that there are."""
    session = next(block.text for block in blocks("console") if block.place.startswith("README.md"))
    policy = tmp_path / "cached.yaml"
    policy.write_text(session.partition("\n")[2].partition("$ ")[0], encoding="utf-8")
    lines = [json.loads(line) for line in session.splitlines() if line.startswith('{"')]

    assert session.startswith("$ cat cached.yaml\n")
    assert read_policy(policy, no_env=False).warnings == ()
    assert [line["cache"] for line in lines] == ["miss", "hit"]
    assert set().union(*lines) <= set(LogLine.__struct_fields__)


def test_docs_stay_within_the_project() -> None:
    """Pages name no path of a developer's machine."""
    assert [
        str(path) for path in pages() if re.search(r"/(?:tmp|home|root|work|Users)/", path.read_text("utf-8"))
    ] == []
