"""Questions: what shares an answer, what never does, and which calls are left alone."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from backends.header_names import HeaderNames
from backends.operations import Operation
from backends.protocol import Call
from policies.cache.semantic.contracts import Question
from policies.cache.semantic.question import Ineligible, Questions, estimate_tokens
from policies.cache.settings import CachePolicy
from tests.support.calls import make_call

TEXT = "How do I reset my password?"
BODY: dict[str, Any] = {
    "model": "m",
    "temperature": 0,
    "messages": [
        {"role": "system", "content": "be nice"},
        {"role": "user", "content": "hello there"},
        {"role": "assistant", "content": "hi, what is it?"},
        {"role": "user", "content": TEXT},
    ],
}
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=6
)
_FIELDS = st.text(min_size=1).filter(
    lambda name: (
        name
        not in {
            *("messages", "model", "temperature", "stream", "stream_options", "user", "metadata", "safety_identifier"),
            *(
                "prompt_cache_key",
                "n",
                "logprobs",
                "top_logprobs",
                "store",
                "web_search_options",
                "audio",
                "modalities",
            ),
        }
    )
)
_NAMES = st.text(min_size=1, max_size=8)


def questions(route: str = "route", fingerprint: str = "e", **cache: Any) -> Questions:
    """The reader of a route with this `cache` section."""
    policy = CachePolicy.model_validate({"semantic": {"mode": "static", **cache.pop("semantic", {})}, **cache})
    assert policy.semantic is not None
    return Questions(policy, policy.semantic, route, fingerprint, HeaderNames(["openai-beta"]))


def call_of(body: dict[str, Any], **fields: Any) -> Call:
    """A chat call with exactly this body."""
    return msgspec.structs.replace(make_call(), body=body, **{"tenant": "red", "key_id": "k", **fields})


def read(call: Call, **cache: Any) -> Question:
    """The question of a call that has one."""
    question = questions(**cache).read(call)
    assert isinstance(question, Question), question
    return question


def changed(**fields: Any) -> dict[str, Any]:
    """The base body with other fields."""
    return {**copy.deepcopy(BODY), **fields}


def test_question_text_is_the_last_users_and_not_part_of_the_group() -> None:
    """Other words are another text of the same group."""
    body = copy.deepcopy(BODY)
    body["messages"][-1]["content"] = "My password has to be changed, how?"
    first, other = read(call_of(BODY)), read(call_of(body))

    assert (first.scope, first.group) == (other.scope, other.group)
    assert first.text == TEXT
    assert other.text != TEXT


@pytest.mark.parametrize("field", ["stream", "stream_options", "user", "metadata"])
def test_question_ignores_how_the_answer_travels(field: str) -> None:
    """Forms share entries; who asks is in the scope."""
    value: Any = {"stream": True, "stream_options": {"include_usage": True}, "user": "u", "metadata": {"a": "b"}}[field]

    assert read(call_of(changed(**{field: value}))) == read(call_of(BODY))


def test_question_of_a_stream_that_is_asked_for_otherwise_is_of_another_group() -> None:
    """What a stored answer cannot be converted to is asked of the backend."""
    call = call_of(changed(stream=True, stream_options={"continuous_usage_stats": True}))

    assert read(msgspec.structs.replace(call, stream=True)).group != read(call_of(BODY)).group


def test_question_for_a_schema_in_another_order_is_of_another_group() -> None:
    """Models fill in a schema as it stands; the order of the body's own fields says nothing."""
    properties = {"why": {"type": "string"}, "is_so": {"type": "boolean"}}
    asked = [
        changed(response_format={"type": "json_schema", "json_schema": {"schema": {"properties": dict(keys)}}})
        for keys in (properties.items(), reversed(properties.items()))
    ]

    assert read(call_of(asked[0])).group != read(call_of(asked[1])).group
    assert read(call_of(dict(reversed(asked[0].items())))).group == read(call_of(asked[0])).group


@given(name=_FIELDS, value=_VALUES)
def test_question_any_other_field_changes_the_group(name: str, value: Any) -> None:
    """Also one that nobody knows, and one that is null."""
    assert read(call_of(changed(**{name: value}))).group != read(call_of(BODY)).group


@given(index=st.integers(0, 2), content=st.text())
def test_question_any_other_message_changes_the_group(index: int, content: str) -> None:
    """The whole conversation before the last question has to be the same."""
    assume(content != BODY["messages"][index]["content"])
    body = copy.deepcopy(BODY)
    body["messages"][index]["content"] = content

    assert read(call_of(body)).group != read(call_of(BODY)).group


@given(
    message=st.fixed_dictionaries({"role": st.sampled_from(["system", "assistant", "developer"]), "content": st.text()})
)
def test_question_added_message_changes_the_group(message: dict[str, Any]) -> None:
    """Before the question or after it."""
    before, after = copy.deepcopy(BODY), copy.deepcopy(BODY)
    before["messages"].insert(0, message)
    after["messages"].append(message)

    assert len({read(call_of(body)).group for body in (BODY, before, after)}) == 3


@given(tenants=st.lists(_NAMES, min_size=2, max_size=2, unique=True), sub_scope=st.binary(max_size=8))
@pytest.mark.parametrize("scope", ["tenant", "key", "user"])
def test_question_tenants_never_share_a_scope(scope: str, tenants: list[str], sub_scope: bytes) -> None:
    """Whatever else is equal, and whatever a header claims."""
    headers = [(b"x-cache-scope", sub_scope), (b"x-tenant", tenants[0].encode("utf-8", "replace"))]
    scopes = {read(call_of(BODY, tenant=tenant, user="u", headers=headers), scope=scope).scope for tenant in tenants}

    assert len(scopes) == 2


@given(
    left=st.tuples(_NAMES, _NAMES, st.none() | st.binary(max_size=6)),
    right=st.tuples(_NAMES, _NAMES, st.none() | st.binary(max_size=6)),
)
def test_question_scope_is_equal_only_if_everything_that_parts_it_is(
    left: tuple[str, str, bytes | None], right: tuple[str, str, bytes | None]
) -> None:
    """Tenant, key and the client's own part: no two combinations meet, however names are cut."""

    def scope_of(tenant: str, key: str, part: bytes | None) -> bytes:
        headers = [(b"x-cache-scope", part)] if part is not None else []
        return read(call_of(BODY, tenant=tenant, key_id=key, headers=headers), scope="key").scope

    assert (scope_of(*left) == scope_of(*right)) == (left == right)


def test_question_route_epoch_and_encoder_part_scopes() -> None:
    """Each of them alone."""
    call = call_of(BODY)
    scopes = [
        read(call).scope,
        read(call, route="other").scope,
        read(call, epoch="2").scope,
        read(call, fingerprint="other").scope,
        read(call, scope="global").scope,
    ]

    assert len(set(scopes)) == 5


def test_question_learning_is_shared_below_a_tenant_and_never_beyond() -> None:
    """Sub-scopes and users learn together; tenants do not."""
    reader = questions(scope="user")
    first = reader.learning_scope(call_of(BODY, user="a", headers=[(b"x-cache-scope", b"1")]))

    assert first == reader.learning_scope(call_of(BODY, user="b"))
    assert first != reader.learning_scope(call_of(BODY, user="a", tenant="blue"))


def test_question_of_several_text_parts_is_the_last_one() -> None:
    """The parts before it are the group's, exactly."""
    parts = [{"type": "text", "text": "context"}, {"type": "text", "text": TEXT}]
    body, other = copy.deepcopy(BODY), copy.deepcopy(BODY)
    body["messages"][-1]["content"] = parts
    other["messages"][-1]["content"] = [{"type": "text", "text": "other context"}, parts[1]]

    assert read(call_of(body)).text == TEXT
    assert len({read(call_of(each)).group for each in (BODY, body, other)}) == 3


def test_question_context_modes_keep_what_they_say() -> None:
    """Instructions always count; older turns as far as the route says."""
    older, newer = copy.deepcopy(BODY), copy.deepcopy(BODY)
    older["messages"][1:1] = [{"role": "user", "content": "long ago"}, {"role": "assistant", "content": "yes"}]
    newer["messages"][2]["content"] = "something else"
    told = copy.deepcopy(BODY)
    told["messages"][0]["content"] = "be rude"

    def groups(**semantic: Any) -> list[bytes]:
        return [read(call_of(body), semantic=semantic).group for body in (BODY, older, newer, told)]

    base, *others = groups(context="system_only")
    assert [other == base for other in others] == [True, True, False]
    base, *others = groups(context="last_k_turns", context_turns=1)
    assert [other == base for other in others] == [True, False, False]
    base, *others = groups(context="full")
    assert [other == base for other in others] == [False, False, False]


def said(text: Any) -> dict[str, Any]:
    """The base body with another last question."""
    body = copy.deepcopy(BODY)
    body["messages"][-1]["content"] = text
    return body


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (changed(n=2), Ineligible.CHOICES),
        (changed(logprobs=True), Ineligible.LOGPROBS),
        (changed(top_logprobs=3), Ineligible.LOGPROBS),
        (changed(store=True), Ineligible.STATEFUL),
        (changed(web_search_options={}), Ineligible.STATEFUL),
        (changed(search_parameters={"mode": "on"}), Ineligible.STATEFUL),
        (changed(tools=[{"type": "mcp", "server_url": "https://example.org"}]), Ineligible.STATEFUL),
        (changed(tools=[{"type": "openrouter:web_search"}]), Ineligible.STATEFUL),
        (changed(audio={"voice": "a"}), Ineligible.MEDIA),
        (changed(modalities=["text", "audio"]), Ineligible.MEDIA),
        (changed(modalities=5), Ineligible.MEDIA),
        (changed(temperature=0.31), Ineligible.TEMPERATURE),
        (changed(temperature=None), Ineligible.TEMPERATURE),
        (said([{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": TEXT}]), Ineligible.MEDIA),
        (said([]), Ineligible.NO_USER_TEXT),
        (said(None), Ineligible.NO_USER_TEXT),
        (said([{"type": "refusal", "refusal": "no"}]), Ineligible.NO_USER_TEXT),
        (changed(messages=[{"role": "system", "content": "only this"}]), Ineligible.NO_USER_TEXT),
        (
            changed(messages=[*BODY["messages"], {"role": "tool", "tool_call_id": "c", "content": "42"}]),
            Ineligible.TOOL_RESULTS,
        ),
        (said("why?"), Ineligible.TOO_SHORT),
        (said(" \n "), Ineligible.TOO_SHORT),
        (said(""), Ineligible.TOO_SHORT),
        (said("word " * 513), Ineligible.TOO_LONG),
        (said("x" * 1_000_000), Ineligible.TOO_LONG),
        (said("Why was order no. 12345 refused?"), Ineligible.PERSONAL),
        (said("Please write to jane.doe@example.org about it"), Ineligible.PERSONAL),
        (said("Call me back on +49 (170) 123-4567 please"), Ineligible.PERSONAL),
        (said("What of 123e4567-e89b-12d3-a456-426614174000 ?"), Ineligible.PERSONAL),
    ],
)
def test_question_unfit_call_has_a_reason(body: dict[str, Any], reason: Ineligible) -> None:
    """Each thing that makes a call unfit has its own name."""
    assert questions().read(call_of(body)) is reason


def test_question_without_identity_or_of_other_operations_is_left_alone() -> None:
    """A route by user needs one; only chats are read."""
    assert questions(scope="user").read(call_of(BODY)) is Ineligible.NO_IDENTITY
    assert questions().read(make_call(operation=Operation.EMBEDDING)) is Ineligible.OPERATION
    assert questions().read(msgspec.structs.replace(call_of(BODY), body=None)) is Ineligible.OPERATION


def test_question_route_may_allow_more() -> None:
    """Temperature is the route's to say."""
    body = changed(temperature=None, messages=said("Which plan has this limit?")["messages"])

    assert read(call_of(body), semantic={"max_temperature": 1}).text == "Which plan has this limit?"


@pytest.mark.parametrize(
    "text",
    ["What is the weather like in Rome?", "Where is my order, please?", "What is the LATEST version of it?"],
)
def test_question_volatile_is_answered_for_a_short_time_or_left_alone_where_that_is_strict(text: str) -> None:
    """Which words make it so is the route's to say too; what is kept shorter anyway stays so."""
    call = call_of(said(text))
    brief = questions(semantic={"volatile_ttl": "1m"})

    assert isinstance(brief.read(call), Question)
    assert (brief.ttl_s(text), brief.ttl_s("How do I pay?")) == (60.0, 86400.0)
    assert questions(semantic={"ttl": "5s"}).ttl_s(text) == 5.0
    assert questions(semantic={"volatile": "strict"}).read(call) is Ineligible.VOLATILE
    other = questions(semantic={"volatile": "strict", "volatile_words": ["elephant"]})
    assert isinstance(other.read(call), Question)
    assert other.ttl_s(text) == 86400.0


def test_question_earlier_tool_results_are_part_of_the_group() -> None:
    """A conversation that used tools before goes on; what they said has to be the same."""
    groups = set()
    for result in ("42", "43"):
        tool = {"role": "tool", "tool_call_id": "c", "content": result}
        groups.add(read(call_of(changed(messages=[tool, *BODY["messages"]]))).group)

    assert len(groups) == 2


@pytest.mark.parametrize(("text", "least", "most"), [("", 0, 0), ("hello", 1, 1), ("你好吗", 2, 3), ("a b c d", 4, 4)])
def test_estimate_tokens_is_about_right(text: str, least: int, most: int) -> None:
    """Short words are one, letters of other scripts about a half."""
    assert least <= estimate_tokens(text) <= most
