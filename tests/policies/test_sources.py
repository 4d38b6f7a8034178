"""Policies of several files: what is added where, what is refused, and what counts as a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.errors import ConfigurationError
from policies.policy_file.load import LoadedPolicy, load_policy
from policies.policy_file.locate import MAX_BYTES
from policies.policy_file.sources import PolicyFiles
from tests.support.policies import ENVIRON, MINIMAL, settings_of

MAIN = MINIMAL.replace("version: 1\n", "version: 1\ninclude: [teams/*.yaml]\n")
TEAM = """\
routes:
  - {{name: {name}, match: {{models: [{name}]}}, backends: [{{ref: {name}}}]}}
backends:
  {name}: {{type: openai, base_url: "http://127.0.0.1:9000/v1"}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A main file that includes two teams."""
    (tmp_path / "teams").mkdir()
    (tmp_path / "policy.yaml").write_text(MAIN, encoding="utf-8")
    for name in ("blue", "amber"):
        (tmp_path / f"teams/{name}.yaml").write_text(TEAM.format(name=name), encoding="utf-8")
    return tmp_path


def load(folder: Path) -> LoadedPolicy:
    """The policy of that folder."""
    return load_policy(folder / "policy.yaml", ENVIRON, settings_of)


def refusal(folder: Path) -> list[str]:
    """What is said of it, without the folder."""
    with pytest.raises(ConfigurationError) as refused:
        load(folder)
    return refused.value.message.replace(f"{folder}/", "").splitlines()


def test_included_files_add_routes_and_backends_behind_the_main_ones(folder: Path) -> None:
    """In the order of the patterns, and of the names of their files."""
    loaded = load(folder)

    assert [route.name for route in loaded.policy.routes] == ["all", "amber", "blue"]
    assert list(loaded.backends) == ["up", "amber", "blue"]
    assert loaded.policy.include == ("teams/*.yaml",)
    assert loaded.document.position(("routes", 2), "policy.yaml") == f"{folder}/teams/blue.yaml:2"


def test_included_keys_may_be_named_by_other_files(folder: Path) -> None:
    """Names meet over all files, and `defaults` of the main file hold for every route."""
    (folder / "teams/blue.yaml").write_text(
        'keys: [{name: ops, key: "env:OTHER_KEY", tenant: blue}]\n', encoding="utf-8"
    )
    (folder / "policy.yaml").write_text(
        MAIN.replace('models: ["*"]', "keys: [ops], tenants: [blue]") + "defaults: {timeouts: {total: 9s}}\n",
        encoding="utf-8",
    )
    loaded = load(folder)

    assert [key.name for key in loaded.policy.keys] == ["dev", "ops"]
    assert [route.timeouts.total for route in loaded.policy.routes] == [9, 9]


def test_main_file_may_leave_all_routes_to_others(folder: Path) -> None:
    """What is required of the whole may stand in any file."""
    (folder / "policy.yaml").write_text("version: 1\ninclude: [teams/amber.yaml, 'teams/*']\n", encoding="utf-8")

    assert [route.name for route in load(folder).policy.routes] == ["amber", "blue"]


def test_problems_say_in_which_file_they_are(folder: Path) -> None:
    """Each with its own line and place there, all of them at once, the main file's in front."""
    (folder / "policy.yaml").write_text(MAIN + "    timeouts: {total: 3}\n", encoding="utf-8")
    (folder / "teams/amber.yaml").write_text(
        "routes:\n  - {name: x, match: {}, backends: [{ref: gone}]}\nstores: {}\n", encoding="utf-8"
    )
    (folder / "teams/blue.yaml").write_text("keys: {a: 1}\nbackends: [\n", encoding="utf-8")
    said = refusal(folder)

    assert [line.split(" - ")[0].split(". ")[0] for line in said] == [
        "policy.yaml:11: routes[0].timeouts.total: 3",
        "teams/amber.yaml:2: routes[0].match: {}",
        'teams/amber.yaml:2: routes[0].backends[0].ref: no backend is named "gone"',
        "teams/amber.yaml:3: stores: cannot stand in a file that is included",
        "teams/blue.yaml:3:1: this is not YAML: while parsing a flow node did not find expected node content",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("routes: {}", "teams/amber.yaml:1: routes: {} - must be a list"),
        ("backends: []", "teams/amber.yaml:1: backends: [] - must be a mapping of keys to values"),
        ("- a", "teams/amber.yaml:1: a list - must be a mapping of keys to values"),
        ("", "teams/amber.yaml:1: the file is empty"),
        ("include: [x]", "teams/amber.yaml:1: include: cannot stand in a file that is included. Allowed: routes, keys"),
        ("routes:\n- {name: a, name: b}", "teams/amber.yaml:2: routes[0].name: given twice, first on line 2"),
        ("#" * MAX_BYTES + "##", "teams/amber.yaml:1: the file is larger than 1024 KiB"),
    ],
)
def test_included_file_that_cannot_be_used_is_named(folder: Path, text: str, said: str) -> None:
    """Whatever is wrong with it."""
    (folder / "teams/amber.yaml").write_text(text, encoding="utf-8")

    assert any(line.startswith(said) for line in refusal(folder)), refusal(folder)


def test_name_taken_in_another_file_names_both(folder: Path) -> None:
    """The later one is told, and where the first is."""
    (folder / "teams/blue.yaml").write_text(TEAM.format(name="amber"), encoding="utf-8")

    assert refusal(folder) == [
        'teams/blue.yaml:2: routes[0].name: the route name "amber" is taken, see teams/amber.yaml:2',
        'teams/blue.yaml:4: backends.amber: the backend name "amber" is taken, see teams/amber.yaml:4',
    ]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("gone/*.yaml", '"gone/*.yaml" - matches no file in'),
        ("/etc/passwd", '"/etc/passwd" - must lead to files below'),
        ("teams/../../x", '"teams/../../x" - must lead to files below'),
        ("**/*.yaml", '"**/*.yaml" - must lead to files below'),
        ("teams", '"teams" - '),
    ],
)
def test_pattern_that_leads_nowhere_or_out_is_refused(folder: Path, pattern: str, said: str) -> None:
    """With the line on which it stands."""
    (folder / "policy.yaml").write_text(MAIN.replace("teams/*.yaml", f"'{pattern}'"), encoding="utf-8")

    assert any(line.startswith(f"policy.yaml:2: include[0]: {said}") for line in refusal(folder)), refusal(folder)


def test_link_out_of_the_folder_is_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One within it is followed, as those of mounted volumes are."""
    outside = tmp_path_factory.mktemp("outside") / "x.yaml"
    outside.write_text(TEAM.format(name="red"), encoding="utf-8")
    (folder / "kept.txt").write_text(TEAM.format(name="green"), encoding="utf-8")
    (folder / "teams/green.yaml").symlink_to(folder / "kept.txt")
    assert "green" in load(folder).backends

    (folder / "teams/red.yaml").symlink_to(outside)

    assert "teams/red.yaml leads out of the policy's folder, to " in refusal(folder)[0]


def test_fingerprint_and_revision_follow_every_file(folder: Path) -> None:
    """A change, a new file and one that is gone are seen; the same files are the same."""
    files = PolicyFiles(folder / "policy.yaml")
    revisions = {files.read().revision}
    assert files.fingerprint() == files.seen
    new = folder / "teams/new.yaml"
    for change in (lambda: new.write_text(TEAM.format(name="new")), lambda: new.write_text("keys: []"), new.unlink):
        change()

        assert files.fingerprint() != files.seen
        revisions.add(files.read().revision)
        assert files.fingerprint() == files.seen
    assert len(revisions) == 3


def test_first_file_that_is_gone_is_refused_once(folder: Path) -> None:
    """What it included is not looked for any more, until it is back."""
    files = PolicyFiles(folder / "policy.yaml")
    files.read()
    (folder / "policy.yaml").unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        files.read()
    assert files.fingerprint() == files.seen

    (folder / "policy.yaml").write_text(MAIN, encoding="utf-8")

    assert files.fingerprint() != files.seen


def test_files_of_a_policy_that_was_refused_are_watched(folder: Path) -> None:
    """So that mending the included file is noticed."""
    (folder / "teams/blue.yaml").write_text("routes: [", encoding="utf-8")
    files = PolicyFiles(folder / "policy.yaml")
    assert files.read().document.problems
    assert files.fingerprint() == files.seen

    (folder / "teams/blue.yaml").write_text(TEAM.format(name="blue"), encoding="utf-8")

    assert files.fingerprint() != files.seen
