"""Route matching, against a naive reading of the same conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.matching.conditions import below_root
from policies.matching.globs import allows
from policies.matching.route_matcher import RouteMatcher
from policies.schema import RoutePolicy
from tests.support.policy.least_time import least_s

CALL: dict[str, Any] = {
    "model": "gpt-4o",
    "path": "/chat/completions",
    "headers": [(b"accept", b"*/*"), (b"x-team", b"sales"), (b"x-team", b"support")],
    "key": "dev",
    "tenant": "red",
}


def route(name: str, **match: object) -> RoutePolicy:
    """A route with these conditions."""
    return RoutePolicy.model_validate({"name": name, "match": match, "backends": [{"ref": "up"}]})


def chosen(routes: Sequence[RoutePolicy], **changes: object) -> str | None:
    """The name of the route that takes the usual call with these changes."""
    found = RouteMatcher(routes).match(**{**CALL, **changes})
    return found.name if found is not None else None


@pytest.mark.parametrize(
    ("match", "holds"),
    [
        ({"models": ["gpt-4o"]}, True),
        ({"models": ["GPT-4o"]}, False),
        ({"models": ["other", "gpt-*"]}, True),
        ({"models": ["gpt-[3-4]?"]}, True),
        ({"models": ["gpt"]}, False),
        ({"paths": ["/v1/chat/completions"]}, True),
        ({"paths": ["/chat/*"]}, True),
        ({"paths": ["/v1*"]}, True),
        ({"paths": ["/v1/embeddings", "/v1/completions"]}, False),
        ({"headers": {"X-Team": "support"}}, True),
        ({"headers": {"x-team": "s?les"}}, True),
        ({"headers": {"x-team": "Support"}}, False),
        ({"headers": {"x-team": "support", "x-none": "*"}}, False),
        ({"keys": ["ops", "dev"]}, True),
        ({"keys": ["ops"]}, False),
        ({"tenants": ["red"]}, True),
        ({"tenants": ["blue"]}, False),
        ({"models": ["gpt-4o"], "keys": ["dev"], "tenants": ["blue"]}, False),
        ({"models": ["*"], "internal": True}, False),
    ],
)
def test_match_condition_decides(match: dict[str, object], holds: bool) -> None:
    """Every condition that is given must hold, and an internal route takes nothing by itself."""
    assert chosen([route("a", **match)]) == ("a" if holds else None)


@pytest.mark.parametrize(
    ("match", "holds"),
    [({"models": ["*"]}, True), ({"models": ["**"]}, False), ({"models": ["gpt*"]}, False), ({"paths": ["/*"]}, True)],
)
def test_match_call_without_model_needs_star_or_no_condition(match: dict[str, object], holds: bool) -> None:
    """A call that names no model is taken by "*" itself or by a route that does not ask for one."""
    assert chosen([route("a", **match)], model="") == ("a" if holds else None)


def test_match_first_of_several_wins() -> None:
    """Order decides, whether a route names the model, covers it by a glob, or has no such condition."""
    glob, exact, path = route("glob", models=["gpt*"]), route("exact", models=["gpt-4o"]), route("path", paths=["/*"])

    assert chosen([glob, exact, path]) == "glob"
    assert chosen([exact, glob, path]) == "exact"
    assert chosen([path, exact, glob]) == "path"
    assert chosen([exact, glob, path], model="gpt-5") == "glob"
    assert chosen([exact, glob, path], model="llama") == "path"


def test_match_header_value_outside_ascii_is_read_as_utf8() -> None:
    """One `?` stands for one character, not for one byte."""
    headers = [(b"x-team", "né".encode())]

    assert chosen([route("a", headers={"x-team": "n?"})], headers=headers) == "a"
    assert chosen([route("a", headers={"x-team": "né"})], headers=headers) == "a"


def test_explain_says_every_condition_that_failed() -> None:
    """Each route gets a verdict: all its failures, whether it holds, and whether it was chosen."""
    routes = [
        route(
            "picky", models=["llama"], paths=["/v1/embeddings"], headers={"x-a": "b"}, keys=["ops"], tenants=["blue"]
        ),
        route("spare", internal=True),
        route("taken", models=["gpt*"]),
        route("late", models=["*"]),
    ]

    picky, spare, taken, late = RouteMatcher(routes).explain(**CALL)

    assert [failure.condition for failure in picky.failures] == ["models", "paths", "headers.x-a", "keys", "tenants"]
    assert (picky.failures[0].expected, picky.failures[0].actual) == ("llama", "gpt-4o")
    assert [failure.condition for failure in spare.failures] == ["internal"]
    assert (taken.holds, taken.is_chosen) == (True, True)
    assert (late.holds, late.is_chosen) == (True, False)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/v1/models", "/models"), ("/models", "/models"), ("/v1", "/"), ("/v1*", "*"), ("/v1beta/x", "/v1beta/x")],
)
def test_below_root_takes_away_the_api_root(path: str, expected: str) -> None:
    """Only the whole part `/v1` at the beginning is the root."""
    assert below_root(path) == expected


def test_allows_models_of_a_key() -> None:
    """A key's globs cover models as a route's do."""
    assert allows(("gpt-4o", "llama-*"), "llama-3")
    assert allows(("*",), "")
    assert not allows(("gpt-4o", "llama-*"), "gpt-4o-mini")
    assert not allows(("llama-*", "**"), "")


texts = st.text(alphabet="ab/é", max_size=4)
globs = st.text(alphabet="ab/é*?[]!-", min_size=1, max_size=5)
words = st.sampled_from(["a", "b"])
matches = st.fixed_dictionaries(
    {"models": st.lists(globs, max_size=3), "paths": st.lists(globs.map(lambda glob: "/" + glob), max_size=2)},
    optional={
        "headers": st.dictionaries(words, globs, max_size=2),
        "keys": st.lists(words, max_size=2),
        "tenants": st.lists(words, max_size=2),
        "internal": st.booleans(),
    },
).filter(lambda match: any(match.values()))


@given(
    st.lists(matches, max_size=5),
    st.fixed_dictionaries(
        {
            "model": texts,
            "path": texts.map(lambda path: "/" + path),
            "headers": st.lists(st.tuples(words.map(str.encode), texts.map(str.encode)), max_size=3),
            "key": words,
            "tenant": words,
        }
    ),
)
def test_match_agrees_with_a_naive_reading(matches: list[dict[str, Any]], call: dict[str, Any]) -> None:
    """The compiled matcher, `explain` and plain fnmatch choose the same route, for any globs and call."""
    routes = [route(f"r{index}", **match) for index, match in enumerate(matches)]
    expected = next((route.name for route in routes if _naive(route, call)), None)

    assert chosen(routes, **call) == expected
    verdicts = RouteMatcher(routes).explain(**call)
    assert [verdict.holds for verdict in verdicts] == [_naive(route, call) for route in routes]
    assert next((verdict.route for verdict in verdicts if verdict.is_chosen), None) == expected


names = st.sampled_from(["a", "a/b", "a/b/c", "b"])
crowds = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "models": st.lists(st.sampled_from(["a", "a/b", "a/*", "a*b", "*b", "*/*", "?", "*"]), max_size=3),
            "keys": st.lists(names, max_size=2),
            "tenants": st.lists(names, max_size=2),
            "paths": st.lists(st.sampled_from(["/a", "/b", "/a/b", "/*"]), max_size=2),
            "headers": st.dictionaries(st.sampled_from(["X", "y"]), st.sampled_from(["a", "b", "a*"]), max_size=2),
        },
    ).filter(lambda match: any(match.values())),
    min_size=12,
    max_size=40,
)


# An example is some dozens of routes that five calls are held against.
@settings(max_examples=35)
@given(
    crowds,
    st.lists(
        st.fixed_dictionaries(
            {
                "model": names | st.just(""),
                "path": st.sampled_from(["/a", "/b", "/a/b"]),
                "headers": st.lists(
                    st.tuples(st.sampled_from([b"x", b"y"]), st.sampled_from([b"a", b"b", b"ab"])), max_size=3
                ),
                "key": names,
                "tenant": names,
            }
        ),
        min_size=5,
        max_size=5,
    ),
)
def test_match_in_a_crowd_agrees_with_a_naive_reading(
    matches: list[dict[str, Any]], calls: list[dict[str, Any]]
) -> None:
    """Many routes for the same few models, told apart by all that a route can ask for: still the first that holds."""
    routes = [route(f"r{index}", **match) for index, match in enumerate(matches)]
    matcher = RouteMatcher(routes)
    for call in calls:
        found = matcher.match(**call)

        assert found is next((route for route in routes if _naive(route, call)), None)


@pytest.mark.parametrize(
    "conditions",
    [
        lambda number: {"models": [f"model-{number}"]},
        lambda number: {"models": [f"team-{number}/*"]},
        lambda number: {"models": [f"*-{number}"]},
        lambda number: {"models": ["gpt-4o"], "tenants": [f"tenant-{number}"]},
        lambda number: {"models": ["gpt-*"], "keys": [f"key-{number}"]},
        lambda number: {"paths": [f"/v1/path-{number}"]},
        lambda number: {"models": ["*"], "headers": {"x-team": f"team-{number}"}},
    ],
    ids=["models", "beginnings", "ends", "tenants", "keys", "paths", "headers"],
)
@pytest.mark.timed
def test_match_costs_the_same_among_thousands(conditions: Callable[[int], dict[str, object]]) -> None:
    """The last of 2,000 routes that are told apart in one way is found nearly as fast as one that is alone."""
    number = 1999
    many = [route(f"r{index}", **conditions(index)) for index in range(number + 1)]
    models: Any = conditions(number).get("models", ["gpt-4o"])
    call: dict[str, Any] = {
        "model": "gpt-4o" if models[0] in ("gpt-*", "*") else models[0].replace("*", "x"),
        "path": f"/path-{number}",
        "headers": [(b"x-team", b"team-%d" % number)],
        "key": f"key-{number}",
        "tenant": f"tenant-{number}",
    }
    among_many, alone = RouteMatcher(many), RouteMatcher(many[-1:])

    assert among_many.match(**call) is alone.match(**call) is many[-1]
    assert least_s(lambda: among_many.match(**call)) < 12 * least_s(lambda: alone.match(**call))


def _naive(route: RoutePolicy, call: dict[str, Any]) -> bool:
    match = route.match
    model = call["model"]
    models = any((model or glob == "*") and fnmatchcase(model, glob) for glob in match.models)
    paths = any(fnmatchcase(call["path"], glob) for glob in match.paths)
    headers = [
        any(field.decode() == name.lower() and fnmatchcase(value.decode(), glob) for field, value in call["headers"])
        for name, glob in match.headers.items()
    ]
    return (
        not match.internal
        and (models or not match.models)
        and (paths or not match.paths)
        and all(headers)
        and (call["key"] in match.keys or not match.keys)
        and (call["tenant"] in match.tenants or not match.tenants)
    )
