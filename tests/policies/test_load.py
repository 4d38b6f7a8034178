"""Reading policy files: what is accepted, and what is said of what is not. One bad file each in `bad/`."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from backends.errors import ConfigurationError
from policies.policy_file.load import load_policy
from policies.policy_file.locate import MAX_BYTES, MAX_NODES, read_document
from tests.support.policies import ENVIRON, FULL, MINIMAL, UpstreamConfig, parse, settings_of

BAD = sorted(Path(__file__).with_name("bad").glob("*.yaml"))


@pytest.mark.parametrize("file", BAD, ids=lambda file: file.stem)
def test_load_bad_file_says_where_and_what_to_do(file: Path) -> None:
    """Each bad file is refused with exactly the message kept beside it."""
    with pytest.raises(ConfigurationError) as refused:
        parse(file.read_bytes())

    assert refused.value.message + "\n" == file.with_suffix(".txt").read_text(encoding="utf-8")


def test_load_bad_files_never_show_a_secret() -> None:
    """No message repeats the value of a key, neither a resolved one nor one pasted into the file."""
    said = "".join(file.with_suffix(".txt").read_text(encoding="utf-8") for file in BAD)

    assert "sk-" not in said
    assert any("sk-live-secret" in file.read_text(encoding="utf-8", errors="replace") for file in BAD)


def test_load_minimal_file_fills_in_defaults() -> None:
    """The least file gives a route with every section, its backend's settings and no warning."""
    loaded = parse(MINIMAL)

    kind, settings = loaded.backends["up"]
    assert (kind, type(settings)) == ("openai", UpstreamConfig)
    assert isinstance(settings, UpstreamConfig)
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == ENVIRON["UPSTREAM_KEY"]
    assert loaded.policy.routes[0].timeouts.total == 600
    assert loaded.policy.routes[0].cache is None
    assert loaded.warnings == ()


def test_load_secrets_are_hidden_in_repr() -> None:
    """Nothing that is logged by accident shows a key."""
    assert not any(secret in repr(parse(FULL)) for secret in ENVIRON.values())


def test_load_full_file_merges_defaults_section_by_section() -> None:
    """A route's own section counts whole, a missing one is taken over, and null turns it off."""
    chat, spare, rest = parse(FULL).policy.routes

    assert (chat.timeouts.connect, chat.timeouts.first_token, chat.timeouts.total) == (2, 8, 90)
    assert (chat.retry.attempts, chat.retry.backoff.initial, chat.retry.budget_percent) == (1, 0.05, 20)
    assert (chat.circuit_breaker.consecutive_failures, rest.circuit_breaker.consecutive_failures) == (3, 5)
    assert chat.cache is not None
    assert rest.cache is not None
    assert (chat.cache.scope, spare.cache, rest.cache.scope) == ("tenant", None, "key")


def test_load_section_of_a_route_takes_nothing_from_defaults() -> None:
    """Half a section in a route is completed by the built-in defaults, not by those of the file."""
    loaded = parse("defaults: {timeouts: {connect: 1s, total: 2s}}\n" + MINIMAL + "    timeouts: {connect: 3s}\n")

    assert (loaded.policy.routes[0].timeouts.connect, loaded.policy.routes[0].timeouts.total) == (3, 600)


def test_load_plain_words_are_text() -> None:
    """`on` is a key, `off` a choice and a date-like epoch a text, as in YAML 1.2."""
    cache = parse(FULL).policy.routes[0].cache

    assert cache is not None
    assert (cache.exact.coalesce, cache.epoch) == ("off", "2026-11")


def test_load_revision_follows_the_bytes() -> None:
    """The same bytes have the same short revision; a comment makes another."""
    assert parse(MINIMAL).revision == parse(MINIMAL).revision
    assert re.fullmatch("[0-9a-f]{12}", parse(MINIMAL).revision)
    assert parse(MINIMAL).revision != parse(MINIMAL + "# changed\n").revision


def test_load_byte_order_mark_is_skipped() -> None:
    """A file saved with a byte order mark loads."""
    assert parse(b"\xef\xbb\xbf" + MINIMAL.encode()).policy == parse(MINIMAL).policy


def test_load_file_from_disk(tmp_path: Path) -> None:
    """A file is named in the messages by the path it was given by; secrets may come from files."""
    (tmp_path / "key").write_text("sk-from-a-file\n", encoding="utf-8")
    path = tmp_path / "policy.yaml"
    path.write_text(MINIMAL.replace("env:GATEWAY_KEY", f"file:{tmp_path}/key"), encoding="utf-8")

    loaded = load_policy(path, ENVIRON, settings_of)

    assert loaded.path == path
    assert loaded.policy.keys[0].key.get_secret_value() == "sk-from-a-file"


def test_load_missing_file_names_it(tmp_path: Path) -> None:
    """A file that is not there is a configuration error with its path and the reason."""
    with pytest.raises(ConfigurationError, match=r"gone\.yaml: the policy file cannot be read: No such file"):
        load_policy(tmp_path / "gone.yaml", ENVIRON, settings_of)


def test_load_large_file_is_refused(tmp_path: Path) -> None:
    """Nothing beyond the limit is parsed, nor read from disk."""
    path = tmp_path / "policy.yaml"
    path.write_bytes(MINIMAL.encode() + b"#" * MAX_BYTES)

    with pytest.raises(ConfigurationError, match="larger than 1024 KiB"):
        load_policy(path, ENVIRON, settings_of)


def test_load_deep_file_is_refused_before_it_is_composed() -> None:
    """Half a million open brackets end in an error, not in an exhausted stack."""
    with pytest.raises(ConfigurationError, match="nested deeper"):
        parse("[" * 500_000)


def test_load_thousands_of_problems_are_cut_short() -> None:
    """A long message has an end: a hundred problems, and the word that there are more."""
    routes = "".join(
        f"  - {{name: r{index}, match: {{models: [a]}}, backends: [{{ref: gone{index}}}]}}\n" for index in range(3000)
    )
    with pytest.raises(ConfigurationError) as refused:
        parse(MINIMAL + routes)

    lines = refused.value.message.splitlines()
    assert len(lines) == 101
    assert lines[-1] == "policy.yaml: there are more problems than these 100"


@pytest.mark.parametrize("text", ["&a [*a]", "&a {x: *a}", "&a {<<: *a}"])
def test_load_alias_to_itself_is_refused(text: str) -> None:
    """An anchor that holds itself ends in an error."""
    with pytest.raises(ConfigurationError, match="aliases written out"):
        parse(text)


def test_document_knows_the_lines_of_merged_keys() -> None:
    """A key that a merge brings in stands where it was written."""
    document = read_document(b"a: &x\n  one: 1\n  two: 2\nb:\n  <<: *x\n  two: 3\n")

    assert document.data == {"a": {"one": 1, "two": 2}, "b": {"one": 1, "two": 3}}
    assert (document.lines["b", "one"], document.lines["b", "two"]) == (2, 6)


def test_document_earlier_merges_win() -> None:
    """Of several mappings merged in, the first that has a key gives it."""
    document = read_document(b"- &x {a: 1}\n- &y {a: 2, b: 2}\n- {<<: [*x, *y]}\n")

    assert document.data == [{"a": 1}, {"a": 2, "b": 2}, {"a": 1, "b": 2}]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("yes", "yes"),
        ("~", None),
        ("", None),
        ("07", 7),
        ("1:30", "1:30"),
        ("1.5", 1.5),
        ("1e3", "1e3"),
    ],
)
def test_document_scalars(text: str, value: object) -> None:
    """Plain scalars are read by the core rules only."""
    assert read_document(f"a: {text}\n".encode()).data == {"a": value}


def test_document_huge_numbers_stay_text() -> None:
    """Digits beyond 64 bits are no integer, and overflow is no infinity."""
    digits = "9" * 5000

    assert read_document(f"a: {digits}\n".encode()).data == {"a": digits}


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (MINIMAL + "  - {name: b, match: {models: [x]}, backends: [{ref: up}]}\n", 'route "b" is never reached: "all"'),
        (MINIMAL + "  - {name: b, match: {internal: true}, backends: [{ref: up}]}\n", 'route "b" is internal, and no'),
        (
            MINIMAL.replace("keys:", '  spare: {type: openai, base_url: "http://h/v1"}\nkeys:'),
            "backends.spare: no route",
        ),
        (MINIMAL.replace("ref: up", "ref: up, weight: 0"), "every backend has weight 0"),
    ],
)
def test_load_doubtful_file_loads_with_a_warning(text: str, warning: str) -> None:
    """What can hardly be meant is accepted, and said once."""
    warnings = parse(text).warnings

    assert len(warnings) == 1
    assert warning in warnings[0]


def test_load_route_that_a_budget_falls_back_to_is_used() -> None:
    """It is internal, and a budget names it."""
    budget = "budgets: [{name: b, per: all, usd: 1, on_exceed: fallback, fallback: cheap}]\n"
    text = budget + MINIMAL + "  - {name: cheap, match: {internal: true}, backends: [{ref: up}]}\n"

    assert [warning for warning in parse(text).warnings if "cheap" in warning] == []


@pytest.mark.parametrize(
    ("first", "second", "is_reached"),
    [
        ("models: ['gpt-*']", "models: ['gpt-4*', gpt-4o]", False),
        ("models: ['gpt-?']", "models: ['gpt-*']", True),
        ("models: ['gpt-4*']", "models: ['gpt-*']", True),
        ("models: [a]", "paths: [/v1/embeddings]", True),
        ("paths: [/v1/embeddings]", "models: [a], paths: [/embeddings]", False),
        ("headers: {X-A: b}", "headers: {x-a: b, x-c: d}", False),
        ("headers: {x-a: b}", "headers: {x-a: c}", True),
        ("keys: [dev]", "keys: [dev], models: [a]", False),
        ("keys: [dev]", "models: [a]", True),
        ("tenants: [default]", "tenants: [default]", False),
    ],
)
def test_load_unreachable_route_is_found(first: str, second: str, is_reached: bool) -> None:
    """A route is doubted only if an earlier one certainly takes all its calls."""
    routes = "".join(
        f"  - {{name: r{index}, match: {{{match}}}, backends: [{{ref: up}}]}}\n"
        for index, match in enumerate((first, second))
    )
    warnings = parse(MINIMAL[: MINIMAL.index("routes:")] + "routes:\n" + routes).warnings

    assert any("never reached" in warning for warning in warnings) is not is_reached


def _many(match: str, number: int) -> str:
    """A policy with so many routes, whose conditions are `match` with their number in it."""
    lines = [f"  - {{name: r{at}, match: {{{match % at}}}, backends: [{{ref: up}}]}}\n" for at in range(number)]
    return MINIMAL[: MINIMAL.index("routes:")] + "routes:\n" + "".join(lines)


def test_load_unreachable_route_is_found_far_below() -> None:
    """However many routes are in between, and the first that takes its calls is named."""
    text = _many("models: [m%d], tenants: [default]", 1000)
    late = "  - {name: late, match: {models: [m7], tenants: [default], keys: [dev]}, backends: [{ref: up}]}\n"

    assert [warning.split("above")[0] for warning in parse(text + late).warnings] == [
        'routes[1000]: route "late" is never reached: "r7", '
    ]


@pytest.mark.parametrize(
    ("match", "is_slow"),
    [
        ("models: ['*-%d-*']", True),
        ("paths: ['/v1/*/%d']", True),
        ("models: ['a-%d-*']", False),
        ("models: [a], headers: {x-a: 'a%d'}", False),
    ],
)
def test_load_routes_that_no_look_up_tells_apart_are_a_warning(match: str, is_slow: bool) -> None:
    """Many conditions that have to be tried one by one for the same call cost time on each."""
    warnings = parse(_many(match, 200)).warnings

    assert [warning for warning in warnings if "200 routes are tried" in warning] == list(warnings)
    assert bool(warnings) is is_slow


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["env:X", "2s", "/a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


def _places(value: object, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(inner for key, item in items for inner in _places(item, (*place, key)))]


FULL_DATA: Any = read_document(FULL.encode()).data
PLACES = _places(FULL_DATA)[1:]


@given(place=st.sampled_from(PLACES), value=json_values, is_removed=st.booleans())
def test_load_any_value_anywhere_raises_only_configuration_error(
    place: tuple[str | int, ...], value: object, is_removed: bool
) -> None:
    """Whatever replaces a value of a valid file, it loads or is refused, one line for each problem."""
    data = copy.deepcopy(FULL_DATA)
    section = data
    for part in place[:-1]:
        section = section[part]
    if is_removed:
        del section[place[-1]]
    else:
        section[place[-1]] = value

    _load_or_refuse(yaml.safe_dump(data, allow_unicode=True).encode("utf-8", "replace"))


@given(start=st.integers(0, len(FULL)), length=st.integers(0, 40), patch=st.binary(max_size=12))
@example(start=0, length=0, patch=b"\xff")
@example(start=0, length=0, patch=b"%YAML 9.9\n")
@example(start=FULL.index("openai") + 1, length=0, patch=b"\n\n")
@example(start=0, length=len(FULL), patch=b"~")
def test_load_any_bytes_raise_only_configuration_error(start: int, length: int, patch: bytes) -> None:
    """Whatever bytes are cut out of a valid file or put into it, it loads or is refused."""
    raw = FULL.encode()

    _load_or_refuse(raw[:start] + patch + raw[start + length :])


@given(st.text(alphabet="{}[]&*<:,- \n'\"|>?!%#abx1", max_size=60))
def test_document_any_text_is_read_or_refused(text: str) -> None:
    """YAML's own signs in any order never raise, and stay within the bounds."""
    document = read_document(text.encode())

    assert len(document.lines) <= MAX_NODES
    assert document.data is not None or document.problems


def _load_or_refuse(raw: bytes) -> None:
    message = ""
    try:
        parse(raw)
    except ConfigurationError as error:
        message = error.message
    assert all(re.match(r"policy\.yaml:\d+", line) for line in message.splitlines())
