"""The identity of calls: what must differ differs, what must not does not."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.header_names import HeaderNames
from backends.operations import Operation
from backends.protocol import Call
from policies.cache.key import cache_key, identity_of
from policies.cache.settings import CacheScope
from tests.support.calls import make_call

READ = HeaderNames(["openai-beta", "x-tier-*"])
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)
_BODIES = st.dictionaries(st.text(min_size=1), _VALUES, max_size=5)


def key_of(call: Call, identity: str = "someone", route: str = "route", epoch: str = "") -> bytes:
    """The key with nothing special about it."""
    key = cache_key(call, identity, route, epoch, READ)
    assert key is not None
    return key


def with_body(body: dict[str, Any], **fields: Any) -> Call:
    """A chat call with exactly this body."""
    return msgspec.structs.replace(make_call(**fields), body=body)


def canonical(value: Any) -> str:
    """An independent notion of equality: JSON with sorted keys, in which 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True)


def in_order(body: dict[str, Any]) -> str:
    """The same of a body without a prompt, in whose fields the order of keys counts."""
    return json.dumps(sorted((name, value) for name, value in body.items() if name not in ("stream", "stream_options")))


BASE: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": "be nice"}, {"role": "user", "content": "caf\u00e9"}],
    "temperature": 1,
    "seed": 7,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
}


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 8},
        {"seed": None},
        {"temperature": 1.0},
        {"temperature": True},
        {"top_p": 1},
        {"n": 2},
        {"user": "someone else"},
        {"unknown_field": {"deep": [1]}},
        {"tools": []},
        {"response_format": {"type": "json_object"}},
        {"messages": [*reversed(BASE["messages"])]},
        {"messages": [BASE["messages"][0], {"role": "user", "content": "cafe\u0301"}]},
        {"messages": [BASE["messages"][0], {"role": "user", "content": [{"type": "text", "text": "caf\u00e9"}]}]},
        {"messages": [BASE["messages"][0], {"role": "assistant", "content": "caf\u00e9"}]},
        {"messages": [BASE["messages"][0], {"role": "user", "content": "caf\u00e9 "}]},
    ],
    ids=str,
)
def test_key_with_one_field_changed_differs(changed: dict[str, Any]) -> None:
    """Everything in the body may matter, down to the type of a number and the form of a letter."""
    assert key_of(with_body({**BASE, **changed})) != key_of(with_body(BASE))


def test_key_without_a_field_differs() -> None:
    """A missing field is another call than any value of it."""
    keys = {key_of(with_body({name: value for name, value in BASE.items() if name != gone})) for gone in BASE}

    assert len(keys | {key_of(with_body(BASE))}) == len(BASE) + 1


@pytest.mark.parametrize(
    "fields",
    [
        {"path": "/engines/chat/completions"},
        {"query": "api-version=2"},
        {"method": "PUT"},
        {"operation": Operation.COMPLETION},
        {"headers": [(b"openai-beta", b"assistants=v2")]},
        {"headers": [(b"x-tier-of-service", b"gold")]},
    ],
    ids=str,
)
def test_key_with_another_destination_differs(fields: dict[str, Any]) -> None:
    """What is asked, and of which version of the API, is part of the question."""
    assert key_of(with_body(BASE, **fields)) != key_of(with_body(BASE))


def test_key_parts_do_not_run_into_each_other() -> None:
    """Moving a character from one part to its neighbour makes another key."""
    call = with_body(BASE)
    keys = {key_of(call, "a", "b", "c"), key_of(call, "ab", "", "c"), key_of(call, "a", "bc", ""), key_of(call, "abc")}

    assert len(keys) == 4


@pytest.mark.parametrize(
    "fields", [{"headers": [(b"user-agent", b"x")]}, {"request_id": "r"}, {"tenant": "t"}], ids=str
)
def test_key_does_not_depend_on_what_changes_no_answer(fields: dict[str, Any]) -> None:
    """Who sent it counts through the identity only."""
    assert key_of(with_body(BASE, **fields)) == key_of(with_body(BASE))


@pytest.mark.parametrize("operation", [Operation.CHAT, Operation.COMPLETION])
def test_key_of_convertible_operation_is_the_same_in_both_forms(operation: Operation) -> None:
    """One entry answers both ways of asking."""
    streamed = make_call(operation=operation, stream=True, extra={"stream_options": {"include_usage": True}})

    assert key_of(streamed) == key_of(make_call(operation=operation, extra={"stream": False}))


@pytest.mark.parametrize("options", [{"continuous_usage_stats": True}, {"include_obfuscation": False}], ids=str)
def test_key_of_a_stream_that_is_asked_for_otherwise_differs(options: dict[str, bool]) -> None:
    """What a stored answer cannot be converted to is asked of the upstream; of a whole answer nothing is asked so."""
    plain = {**BASE, "stream_options": {"include_usage": True}}
    asked = {**BASE, "stream_options": {"include_usage": True, **options}}

    assert key_of(with_body(asked, stream=True)) != key_of(with_body(plain, stream=True))
    assert key_of(with_body(plain, stream=True)) == key_of(with_body(BASE, stream=True)) == key_of(with_body(asked))


def test_key_of_responses_differs_by_form() -> None:
    """Answers that cannot be converted are kept apart."""
    streamed = make_call(operation=Operation.RESPONSES, stream=True)

    assert key_of(streamed) != key_of(make_call(operation=Operation.RESPONSES))


@given(_BODIES, _BODIES)
def test_key_is_equal_exactly_for_equal_bodies(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Two bodies have one key if and only if they are the same JSON value, the stream fields aside."""
    is_same = in_order(first) == in_order(second)

    assert (key_of(with_body(first)) == key_of(with_body(second))) is is_same


@given(_BODIES, st.randoms(use_true_random=False))
def test_key_does_not_depend_on_order_and_white_space(body: dict[str, Any], random: Any) -> None:
    """The same value written differently is the same call."""
    names = list(body)
    random.shuffle(names)
    rewritten = json.loads(json.dumps({name: body[name] for name in names}, indent=3))

    assert key_of(with_body(rewritten)) == key_of(with_body(body))


@pytest.mark.parametrize("beside", [0, 10**40], ids=["usual", "huge"])
def test_key_of_a_schema_in_another_order_differs(beside: int) -> None:
    """Who asks for the reasons first gets another answer than who asks for them last."""
    properties = {"why": {"type": "string"}, "is_so": {"type": "boolean"}}
    seed = {"seed": beside}
    asked = [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": dict(keys)}}}}
        for keys in (properties.items(), reversed(properties.items()))
    ]
    found = [
        {"messages": [{"type": "tool_search_output", "tools": [{"parameters": {"properties": dict(keys)}}]}]}
        for keys in (properties.items(), reversed(properties.items()))
    ]
    same = [{"messages": [dict(keys)]} for keys in (BASE["messages"][0].items(), reversed(BASE["messages"][0].items()))]

    assert key_of(with_body({**asked[0], **seed})) != key_of(with_body({**asked[1], **seed}))
    assert key_of(with_body({**found[0], **seed})) != key_of(with_body({**found[1], **seed}))
    assert key_of(with_body({**same[0], **seed})) == key_of(with_body({**seed, **same[1]}))


@given(_BODIES, st.data())
def test_key_with_any_value_changed_differs(body: dict[str, Any], data: st.DataObject) -> None:
    """Any change of any field makes another call."""
    body = {"field": 0, **body}
    name = data.draw(st.sampled_from([name for name in body if name not in ("stream", "stream_options")]))
    value = data.draw(_VALUES.filter(lambda value: canonical(value) != canonical(body[name])))

    assert key_of(with_body({**body, name: value})) != key_of(with_body(body))


def test_key_of_huge_numbers_is_exact() -> None:
    """Numbers beyond 64 bits count to their last digit."""
    assert key_of(with_body({"seed": 10**40})) != key_of(with_body({"seed": 10**40 + 1}))


@pytest.mark.alone
@pytest.mark.timed
def test_key_of_many_long_numbers_is_made_soon() -> None:
    """8 MB of digits; written out as decimals they took half a second, in which nobody else was served."""
    call = with_body({"x": [int("1" * 4000)] * 2000})
    begun_at = time.perf_counter()
    key_of(call)

    assert time.perf_counter() - begun_at < 0.1


def test_key_of_numbers_beyond_floats_is_their_own() -> None:
    """Infinity, minus infinity and null are three values, with and beside a number beyond 64 bits."""
    for beside in (0, 10**40):
        keys = {key_of(with_body({"x": [value, beside]})) for value in (math.inf, -math.inf, None)}

        assert len(keys) == 3


def test_key_of_huge_number_beside_odd_headers_is_there() -> None:
    """Fields of a head are bytes of any kind."""
    call = make_call(body={"seed": 10**40}, headers=[(b"openai-beta", b"\xff")])

    assert len(key_of(call)) == 32


def test_identity_of_user_without_user_is_none() -> None:
    """A call that lacks the identity it would be shared by is not cached."""
    assert identity_of(make_call(tenant="a"), "user") is None


@pytest.mark.parametrize("scope", ["user", "key", "tenant"])
def test_identity_of_another_tenant_differs(scope: CacheScope) -> None:
    """Equal names of users and keys in two tenants are two identities."""
    first, second = (make_call(tenant=tenant, user="u", key_id="k") for tenant in "ab")

    assert identity_of(first, scope) != identity_of(second, scope)


def test_identity_of_global_scope_is_shared() -> None:
    """Whoever wants sharing across tenants gets it."""
    assert identity_of(make_call(tenant="a"), "global") == identity_of(make_call(tenant="b"), "global")


def test_identity_with_separators_in_names_is_unambiguous() -> None:
    """A name may hold whatever separates names."""
    assert identity_of(make_call(tenant="a:1", user="b"), "user") != identity_of(
        make_call(tenant="a", user="1:b"), "user"
    )


@given(st.lists(st.tuples(st.sampled_from(["user", "key", "tenant"]), st.text(), st.text(min_size=1)), max_size=50))
def test_identities_never_collide(people: list[tuple[CacheScope, str, str]]) -> None:
    """However names are chosen, different people have different identities."""
    expected = {(scope, tenant, "" if scope == "tenant" else name) for scope, tenant, name in people}
    identities = {
        identity_of(make_call(tenant=tenant, user=name, key_id=name), scope) for scope, tenant, name in people
    }

    assert len(identities) == len(expected)
