"""What is read off a stream as it passes, whatever pieces it comes in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.charges.usage import Usage
from backends.http.metering.meter import MeteredAnswer, StreamMeter, told_by
from backends.protocol import Facts
from backends.sse import DONE_EVENT, encode_event
from backends.untrusted import FieldReader

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}


def chunk(text: str = "", finish: str | None = None, index: int = 0, **fields: Any) -> bytes:
    """One chat chunk."""
    choice = {"index": index, "delta": {"content": text}, "finish_reason": finish}
    return encode_event(msgspec.json.encode({"choices": [choice], **fields}))


def usage_chunk() -> bytes:
    """The chunk that holds the usage and nothing else."""
    return encode_event(msgspec.json.encode({"choices": [], "usage": USAGE}))


def meter_of(
    data: bytes, cuts: list[int], num_choices: int = 1, *, responses: bool = False
) -> tuple[StreamMeter, Facts]:
    """A meter that has seen these bytes in pieces of these sizes, over and over."""
    facts = Facts()
    meter = StreamMeter(facts, responses=responses, num_choices=num_choices)
    at = turn = 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        meter.feed(data[at : at + size])
        at += size
        turn += 1
    return meter, facts


CUTS = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@given(cuts=CUTS, crlf=st.booleans())
def test_meter_of_a_whole_stream_reads_usage_and_completeness(cuts: list[int], crlf: bool) -> None:
    """Any cuts, either line end."""
    data = chunk("he said: [DONE]") + chunk('"usage" "error"') + chunk(finish="stop") + usage_chunk() + DONE_EVENT
    meter, facts = meter_of(data.replace(b"\n", b"\r\n") if crlf else data, cuts)

    assert facts.usage == Usage(7, 3, 2)
    assert meter.is_complete()


@given(cuts=CUTS, keep=st.integers(0, 4))
def test_meter_of_a_stream_that_stops_early_is_incomplete(cuts: list[int], keep: int) -> None:
    """Without a reason to finish and without [DONE] an answer is not whole."""
    meter, _ = meter_of(b"".join([chunk("a"), chunk("b"), chunk('c "finish_reason":"stop"'), chunk("d")][:keep]), cuts)

    assert not meter.is_complete()


@given(cuts=CUTS)
def test_meter_of_two_choices_wants_both_finished(cuts: list[int]) -> None:
    """A server that sends no [DONE] has to finish every choice."""
    one = chunk("a", index=0) + chunk("b", index=1) + chunk(finish="stop", index=0)

    assert not meter_of(one, cuts, 2)[0].is_complete()
    assert meter_of(one + chunk(finish="length", index=1), cuts, 2)[0].is_complete()


@given(cuts=CUTS)
def test_meter_of_an_error_event_is_failed_even_with_done(cuts: list[int]) -> None:
    """Some servers say [DONE] behind an error; the answer is no answer all the same."""
    data = chunk("a") + encode_event(b'{"error":{"message":"out of memory"}}') + DONE_EVENT
    meter, _ = meter_of(data, cuts)

    assert meter.failed
    assert not meter.is_complete()


@given(cuts=CUTS)
def test_meter_with_null_errors_and_usages_on_every_chunk_ignores_them(cuts: list[int]) -> None:
    """OpenAI sends `"usage":null` with every chunk when usage is asked for."""
    data = chunk("a", usage=None, error=None) * 3 + chunk(finish="stop", usage=None) + usage_chunk() + DONE_EVENT
    meter, facts = meter_of(data, cuts)

    assert facts.usage == Usage(7, 3, 2)
    assert meter.is_complete()


@pytest.mark.parametrize(
    ("last", "is_complete"),
    [
        ({"type": "response.completed", "response": {"usage": {"input_tokens": 4, "output_tokens": 2}}}, True),
        ({"type": "response.incomplete", "response": {"usage": {"input_tokens": 4, "output_tokens": 2}}}, True),
        ({"type": "response.failed", "response": {"error": {"message": "x"}, "usage": None}}, False),
        ({"type": "response.output_text.delta", "delta": "response.completed"}, False),
        ({"type": "response.in_progress", "response": {"metadata": {"type": "response.completed"}}}, False),
        (
            {
                "type": "response.completed",
                "response": {"metadata": {"type": "error"}, "usage": {"input_tokens": 4, "output_tokens": 2}},
            },
            True,
        ),
    ],
)
@given(cuts=CUTS)
def test_meter_of_responses_goes_by_the_last_event(last: dict[str, Any], is_complete: bool, cuts: list[int]) -> None:
    """Responses have no [DONE]; their events say how they end."""
    data = encode_event(b'{"type":"response.created"}') + encode_event(msgspec.json.encode(last))
    meter, facts = meter_of(data, cuts, responses=True)

    assert meter.is_complete() is is_complete
    if is_complete:
        assert facts.usage == Usage(4, 2, 0)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            {
                "prompt_tokens": 90,
                "completion_tokens": 40,
                "total_tokens": 130,
                "prompt_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 11, "audio_tokens": 12},
                "completion_tokens_details": {"reasoning_tokens": 13, "audio_tokens": 14},
            },
            Usage(90, 40, 10, 11, 0, 12, 0, 13, 14),
        ),
        (
            {
                "input_tokens": 90,
                "output_tokens": 40,
                "input_tokens_details": {"image_tokens": 9, "cached_tokens": "7"},
                "output_tokens_details": {"reasoning_tokens": 99},
            },
            Usage(90, 40, image_input_tokens=9, reasoning_tokens=40),
        ),
        # xAI's own: what it has thought is not among the completion, but among the total.
        (
            {
                "prompt_tokens": 10120,
                "completion_tokens": 1499,
                "total_tokens": 14428,
                "prompt_tokens_details": {"cached_tokens": 128},
                "completion_tokens_details": {"reasoning_tokens": 2809},
            },
            Usage(10120, 4308, 128, reasoning_tokens=2809),
        ),
        # Gemini's: what it has thought is among the total, and nowhere else.
        (
            {"prompt_tokens": 20, "completion_tokens": 198, "total_tokens": 623},
            Usage(20, 603, reasoning_tokens=405),
        ),
        # Of some in front of Claude: what was kept is no part of the prompt.
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 1115,
                "prompt_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 100},
            },
            Usage(1110, 5, 1000, 100),
        ),
        # A total tells nothing of an answer where only the prompt is not told.
        ({"prompt_tokens": -1, "completion_tokens": 5, "total_tokens": 25}, Usage(20, 5)),
        # To be kept for half a day, which costs more, and Qwen's word for what is to be kept.
        (
            {
                "input_tokens": 90,
                "output_tokens": 4,
                "input_tokens_details": {
                    "cache_write_tokens": 80,
                    "cache_write_tokens_details": {"ttl_30m_tokens": 30, "ttl_12h_tokens": 50},
                },
            },
            Usage(90, 4, 0, 30, 50),
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cache_creation_input_tokens": 7}},
            Usage(9, 1, 0, 7),
        ),
        # DeepSeek's and Moonshot's words.
        ({"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 5}, Usage(9, 1, 5)),
        ({"prompt_tokens": 9, "completion_tokens": 1, "cached_tokens": 5}, Usage(9, 1, 5)),
    ],
    ids=["chat", "responses", "xai", "gemini", "beside", "no prompt", "12 h", "qwen", "deepseek", "moonshot"],
)
def test_meter_reads_every_kind_of_token_that_is_billed_apart(told: dict[str, Any], expected: Usage) -> None:
    """In either operation's words, and as far as they can be true."""
    for responses in (False, True):
        event: dict[str, Any] = {"usage": told, "service_tier": "flex", "choices": []}
        if responses:
            event = {"type": "response.completed", "response": event}
        _, facts = meter_of(encode_event(msgspec.json.encode(event)), [7], responses=responses)

        assert facts.usage == msgspec.structs.replace(expected, service_tier="flex")


@pytest.mark.parametrize("last", [4, 1], ids=["told of all", "tells less at its end"])
@given(cuts=CUTS)
def test_meter_of_a_usage_in_every_chunk_counts_the_most_whatever_the_pieces(cuts: list[int], last: int) -> None:
    """vLLM's `continuous_usage_stats` counts from the beginning each time; an answer does not become shorter."""
    counts = [{"prompt_tokens": 7, "completion_tokens": number} for number in (0, 1, 2, 3, 4)]
    data = b"".join(chunk("a", usage=count) for count in counts) + chunk(finish="stop", usage=counts[last])
    _, facts = meter_of(data + DONE_EVENT, cuts)

    assert facts.usage == Usage(7, 4)
    assert not facts.is_usage_partial


@pytest.mark.parametrize("is_chat", [True, False], ids=["chat", "completion"])
@given(cuts=CUTS)
def test_meter_of_a_usage_of_each_choice_adds_them_up(cuts: list[int], is_chat: bool) -> None:
    """llama.cpp tells of each choice behind its end, or of a completion with it; its timings show that it does."""
    told: list[dict[str, Any]] = [
        {"usage": {"prompt_tokens": 7, "completion_tokens": number}, "timings": {"prompt_n": 1, "predicted_n": number}}
        for number in (3, 5)
    ]
    data = chunk("a") + chunk("b", index=1)
    for index, fields in enumerate(told):
        if is_chat:
            data += chunk(finish="stop", index=index) + encode_event(msgspec.json.encode({"choices": [], **fields}))
        else:
            data += chunk(finish="stop", index=index, **fields)
    _, facts = meter_of(data + DONE_EVENT, cuts, num_choices=2)

    assert facts.usage == Usage(7, 8)


@pytest.mark.parametrize(("num_prompts", "prompt_tokens"), [(1, 7), (2, 14), (4, 28)])
def test_meter_of_a_usage_of_each_choice_counts_every_prompt_once(num_prompts: int, prompt_tokens: int) -> None:
    """Choices of one prompt have all read that one."""
    told = {"usage": {"prompt_tokens": 7, "completion_tokens": 1}, "timings": {"predicted_n": 1}}
    facts = Facts()
    meter = StreamMeter(facts, responses=False, num_choices=4, num_prompts=num_prompts)
    for index in range(4):
        meter.feed(chunk("a", finish="stop", index=index, **told))

    assert facts.usage == Usage(prompt_tokens, 4)


def test_meter_of_timings_in_every_chunk_adds_nothing_up() -> None:
    """A usage that counts from the beginning each time, of one choice."""
    counts = [{"usage": {"prompt_tokens": 7, "completion_tokens": n}, "timings": {"predicted_n": n}} for n in (1, 2, 3)]
    data = chunk("a", **counts[0]) + chunk("a", **counts[1]) + chunk(finish="stop", **counts[2])
    _, facts = meter_of(data + DONE_EVENT, [10**6])

    assert facts.usage == Usage(7, 3)


def test_usage_of_the_first_choice_alone_is_known() -> None:
    """By llama.cpp's timings, which are of that choice too; where they are not, the usage is of all."""
    read = FieldReader(MeteredAnswer)
    found = []
    for num_choices, predicted, num_prompts in ((2, 5, 1), (2, 5, 2), (1, 5, 1), (2, 10, 1), (2, None, 2)):
        fields = {"timings": {"predicted_n": predicted}} if predicted is not None else {}
        choices = [{"index": index, "text": "a"} for index in range(num_choices)]
        usage = {"prompt_tokens": 7, "completion_tokens": 5, "cached_tokens": 3}
        body = msgspec.json.encode({"choices": choices, "usage": usage, **fields})
        found.append(told_by(read(body), body, num_prompts))

    all_of_it = (Usage(7, 5, 3), False)
    assert found == [(Usage(7, 5, 3), True), (Usage(0, 5), True), all_of_it, all_of_it, all_of_it]


def test_meter_of_a_tier_that_is_none_reads_the_rest() -> None:
    """A name of a megabyte is not kept."""
    event = {"usage": {"prompt_tokens": 3, "completion_tokens": 2}, "service_tier": "x" * 10**6}
    _, facts = meter_of(encode_event(msgspec.json.encode(event)), [2**20], responses=False)

    assert facts.usage == Usage(3, 2)


def test_meter_of_a_long_line_stays_bounded() -> None:
    """A line without an end does not pile up."""
    meter, _ = meter_of(b"data: " + b"x" * 1_000_000, [4096])

    assert sum(map(len, meter._parts)) <= 128 * 1024


def test_what_sglang_counts_of_its_own_generate_is_usage() -> None:
    """In `meta_info`, among the scores of a prompt; a lie in it counts as not told."""
    read = FieldReader(MeteredAnswer)
    told = read(
        b'{"text":"a","meta_info":{"input_top_logprobs":[null,[[-0.1,5,null]]],"prompt_tokens":9,'
        b'"completion_tokens":1,"cached_tokens":8}}'
    ).meta_info
    lie = read(b'{"meta_info":{"prompt_tokens":-9,"completion_tokens":1}}').meta_info

    assert told is not None
    assert told.counted() == Usage(9, 1, 8)
    assert lie is not None
    assert lie.counted() == Usage(0, 1, 0)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("size", [700, 16_384, 65_536])
def test_meter_of_a_long_last_event_reads_what_it_is_and_what_was_used(size: int, line_end: bytes) -> None:
    """The last event of a response repeats instructions, tools and output: it is as long as these are."""
    answer = {
        "instructions": "x" * 150_000,
        "error": None,
        "output": [{"type": "response.failed", "usage": {"input_tokens": 1}, "text": '"type":"error"'}],
        "usage": {"input_tokens": 4, "output_tokens": 2},
        "service_tier": "flex",
        "metadata": {},
    }
    event = msgspec.json.encode({"type": "response.completed", "sequence_number": 9, "response": answer})
    data = encode_event(b'{"type":"response.created"}') + b"event: response.completed\n" + encode_event(event)
    meter, facts = meter_of(data.replace(b"\n", line_end), [size], responses=True)

    assert meter.is_complete()
    assert facts.usage == Usage(4, 2, service_tier="flex")
    assert not facts.is_usage_partial
    assert not meter_of(data.replace(b"\n", line_end)[:-90], [size], responses=True)[0].is_complete()


@pytest.mark.parametrize("size", [700, 16_384])
def test_meter_of_a_long_failed_response_is_failed(size: int) -> None:
    """It is as long as a good one."""
    answer = {"instructions": "x" * 150_000, "error": {"message": "x"}, "usage": None}
    event = encode_event(msgspec.json.encode({"type": "response.failed", "response": answer}))
    meter, _ = meter_of(event, [size], responses=True)

    assert meter.failed
    assert not meter.is_complete()


@pytest.mark.parametrize("size", [700, 16_384])
def test_meter_of_long_chunks_reads_their_usage_their_error_and_their_end(size: int) -> None:
    """Log-probabilities of a long prompt, or arguments of a call that come in one piece."""
    words = '"usage":{"prompt_tokens":1} "error":"x" "finish_reason":"stop" ' * 2000
    finished = chunk(words, finish="stop", usage=None)
    meter, facts = meter_of(finished + chunk(usage=USAGE, prompt_logprobs=words), [size])
    failed, _ = meter_of(finished + chunk(error={"message": "out of memory"}, prompt_logprobs=words), [size])

    assert facts.usage == Usage(7, 3, 2)
    assert meter.is_complete()
    assert failed.failed
    assert not meter_of(chunk(words), [size])[0].is_complete()


@given(cuts=CUTS)
def test_meter_of_a_response_is_over_once_its_last_event_is(cuts: list[int]) -> None:
    """Nothing comes behind it, and agents leave there: they have all of the answer."""
    last = encode_event(b'{"type":"response.completed","response":{"usage":{"input_tokens":4,"output_tokens":2}}}')
    data = encode_event(b'{"type":"response.created"}') + last

    assert meter_of(data, cuts, responses=True)[0].is_over()
    assert not meter_of(data[:-1], cuts, responses=True)[0].is_over()
    assert not meter_of(data.replace(b"completed", b"failed"), cuts, responses=True)[0].is_over()
    assert not meter_of(chunk(finish="stop"), cuts)[0].is_over()
