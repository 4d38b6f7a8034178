"""The real engine behind its backend, on a tiny random model: what clients ask for reaches the model and comes back."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from backends.clock import SystemClock
from backends.drafts.prediction import Prediction
from backends.drafts.scorer import Scorer
from backends.errors import ConfigurationError, InvalidRequest
from backends.model_server import ModelServer
from backends.operations import Operation
from backends.protocol import Backend
from backends.registry import Registry
from tests.support.calls import event_values, make_call, read_all, streamed_text
from tests.support.gateway import Gateway, running_gateway

pytest.importorskip("torch")
pytest.importorskip("transformers")

GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Folders of a tiny random model and its draft; their tokens are bytes."""
    from tests.support.engine.tiny_pair import make_pair

    return make_pair(tmp_path_factory.mktemp("pair"))


def build(pair: Any, **settings: Any) -> Backend:
    """The backend of `type: engine`, not open yet."""
    kind = Registry().kind("engine")
    given = {
        "model": str(pair.target),
        "device": "cpu",
        "dtype": "float32",
        "threads": 1,
        "max_sequences": 8,
        **settings,
    }
    return kind.build("local", kind.config.model_validate(given), SystemClock())


@pytest.fixture
async def backend(pair: Any) -> AsyncIterator[Backend]:
    """A backend that is open."""
    backend = build(pair, draft=str(pair.draft))
    await backend.open()
    yield backend
    await backend.aclose()


async def ask(backend: Backend, extra: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The body of a whole answer."""
    reply = await backend.send(make_call(extra=extra, **fields))
    body: dict[str, Any] = json.loads(await read_all(reply))
    assert reply.status == 200, body
    return body


async def test_chat_streamed_is_chat_whole(backend: Backend) -> None:
    """The same question, greedily: the same text and usage in both forms, speculation or not."""
    whole = await ask(backend, GREEDY)
    stream = await read_all(await backend.send(make_call(extra=GREEDY, stream=True)))

    assert streamed_text(stream) == whole["choices"][0]["message"]["content"]
    assert whole["choices"][0]["finish_reason"] == "length"
    usage = event_values(stream)[-1]["usage"]
    assert (
        (usage["prompt_tokens"], usage["completion_tokens"])
        == (5, 12)
        == (
            whole["usage"]["prompt_tokens"],
            whole["usage"]["completion_tokens"],
        )
    )


async def test_chat_long_prompt_asked_again_is_cached(backend: Backend) -> None:
    """Whole pages of a prompt that was read before are not read again, but only within a tenant."""
    question = "x" * 200

    await ask(backend, GREEDY, text=question, tenant="red")
    again = await ask(backend, GREEDY, text=question, tenant="red")
    other = await ask(backend, GREEDY, text=question, tenant="blue")

    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 192
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_chat_choices_with_seed_and_logprobs(pair: Any) -> None:
    """Several sampled choices, each with its log-probabilities; the same seed says the same again."""
    backend = build(pair)
    await backend.open()
    asked = {"n": 2, "seed": 7, "max_tokens": 6, "logprobs": True, "top_logprobs": 2, "ignore_eos": True}

    first, again = await ask(backend, asked), await ask(backend, asked)

    assert first["choices"] == again["choices"]
    assert len(first["choices"]) == 2
    for choice in first["choices"]:
        content = choice["logprobs"]["content"]
        assert len(content) == 6
        assert all(len(token["top_logprobs"]) == 2 and token["logprob"] <= 0 for token in content)
    await backend.aclose()


async def test_chat_held_to_json_is_json(backend: Backend) -> None:
    """A random model says JSON of the schema where it must."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}

    body = await ask(backend, {"response_format": form, "max_tokens": 200, "temperature": 0})

    assert body["choices"][0]["finish_reason"] == "stop"
    assert set(json.loads(body["choices"][0]["message"]["content"])) == {"a"}


async def test_chat_schema_that_cannot_be_compiled_is_refused(backend: Backend) -> None:
    """The field is named, and the next call is answered."""
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "no-such-type"}}}

    refused = await backend.send(make_call(extra={"response_format": form}))

    assert refused.status == 400
    assert json.loads(await read_all(refused))["error"]["param"] == "response_format"
    assert await ask(backend, GREEDY)


async def test_chat_schema_beyond_the_librarys_limits_fails_alone(backend: Backend) -> None:
    """It is refused in the middle of its answer; its neighbour never notices, nor does speculation end."""
    properties = {f"p{number}": {"type": "string"} for number in range(1000)}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "properties": properties}}}
    alone = await ask(backend, {**GREEDY, "max_tokens": 60})

    too_much, beside = await asyncio.gather(
        backend.send(make_call(extra={"response_format": form, "temperature": 0, "max_tokens": 60})),
        ask(backend, {**GREEDY, "max_tokens": 60}),
    )
    error = json.loads(await read_all(too_much))["error"]

    assert (too_much.status, error["param"]) == (400, "response_format")
    assert beside["choices"] == alone["choices"]


@pytest.mark.parametrize(
    ("extra", "param"),
    [({"temperature": -1}, "temperature"), ({"top_p": 0}, "top_p"), ({"logit_bias": {"999": 1}}, "logit_bias")],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_chat_out_of_range_is_refused(backend: Backend, extra: dict[str, Any], param: str, stream: bool) -> None:
    """The engine's own ranges reach the client by the field's name."""
    refused = await backend.send(make_call(extra=extra, stream=stream))

    assert refused.status == 400
    assert json.loads(await read_all(refused))["error"]["param"] == param


@pytest.mark.parametrize(
    ("operation", "extra", "param"),
    [
        (Operation.CHAT, {"messages": [{"role": "user", "content": "a" * 100_000}]}, "messages"),
        (Operation.RESPONSES, {"input": "a" * 100_000}, "input"),
        (Operation.COMPLETION, {"prompt": "a" * 100_000}, "prompt"),
        (Operation.EMBEDDING, {"input": ["a", "a" * 100_000]}, "input"),
    ],
)
async def test_text_many_times_the_context_is_refused_by_its_field(
    backend: Backend, operation: Operation, extra: dict[str, Any], param: str
) -> None:
    """As one that is a little too long is."""
    refused = await backend.send(make_call(operation=operation, extra=extra))
    error = json.loads(await read_all(refused))["error"]

    assert (refused.status, error["param"], error["code"]) == (400, param, "context_length_exceeded")
    assert "characters" in error["message"]


async def test_chat_tools_are_refused_by_a_template_without_them(backend: Backend) -> None:
    """The template was asked to write a call, and did not."""
    tools = [{"type": "function", "function": {"name": "f"}}]

    refused = await backend.send(make_call(extra={"tools": tools}))

    assert json.loads(await read_all(refused))["error"]["param"] == "tools"


async def test_completion_scores_its_prompt(backend: Backend) -> None:
    """prompt_logprobs without output are those that echo reports, and their tokens are the prompt."""
    asked = {"prompt": "hello", "max_tokens": 0}

    score = await ask(backend, {**asked, "prompt_logprobs": 1}, operation=Operation.COMPLETION)
    echo = await ask(backend, {**asked, "echo": True, "logprobs": 1}, operation=Operation.COMPLETION)

    [scored], [echoed] = score["choices"], echo["choices"]
    assert (scored["text"], echoed["text"]) == ("", "hello")
    assert scored["prompt_logprobs"][0] is None
    known = [
        next(value["logprob"] for value in entry.values() if value["decoded_token"] == letter)
        for letter, entry in zip("ello", scored["prompt_logprobs"][1:], strict=True)
    ]
    assert known == pytest.approx(echoed["logprobs"]["token_logprobs"][1:])
    assert echoed["logprobs"]["tokens"] == list("hello")
    assert score["usage"]["completion_tokens"] == 0


async def test_completion_scores_a_prompt_that_is_cached_the_same(backend: Backend) -> None:
    """A prompt that was read before is scored whole again."""
    asked = {"prompt": "abcdefgh" * 25, "echo": True, "logprobs": 0, "max_tokens": 0}

    first = await ask(backend, asked, operation=Operation.COMPLETION)
    again = await ask(backend, asked, operation=Operation.COMPLETION)

    known = first["choices"][0]["logprobs"]["token_logprobs"]
    assert len(known) == 200
    assert again["choices"][0]["logprobs"]["token_logprobs"][1:] == pytest.approx(known[1:], abs=1e-4)


async def test_score_is_the_greedy_choice_at_each_position(backend: Backend) -> None:
    """A continuation that the model would say scores as itself; where it differs, the model's own choice stands."""
    assert isinstance(backend, Scorer)
    prefix = list(b"some prefix")
    said = [*await backend.score(prefix, [])]
    for _ in range(4):
        said = [*said, (await backend.score(prefix, said))[-1]]

    wrong = [said[0], (said[1] + 1) % 256, *said[2:]]

    assert await backend.score(prefix, said[:-1]) == said
    assert [*await backend.score(prefix, wrong)][:2] == said[:2]
    with pytest.raises(InvalidRequest):
        await backend.score(prefix, [10**6])


async def test_completion_of_many_prompts_is_each_of_them(backend: Backend) -> None:
    """Texts and tokens in one call, more than one step holds: each choice is what its prompt alone gets."""
    prompts: list[Any] = [f"prompt {number}" for number in range(11)] + [list(b"tokens")]

    together = await ask(backend, {"prompt": prompts, **GREEDY}, operation=Operation.COMPLETION)
    alone = [await ask(backend, {"prompt": [prompt], **GREEDY}, operation=Operation.COMPLETION) for prompt in prompts]

    assert [choice["text"] for choice in together["choices"]] == [each["choices"][0]["text"] for each in alone]


async def test_completion_stops_before_the_stop_string(backend: Backend) -> None:
    """The text up to a stop string, which is not shown."""
    said = (await ask(backend, {"prompt": "hello", **GREEDY}, operation=Operation.COMPLETION))["choices"][0]["text"]
    stop = next(character for character in said if character.isprintable() and character != "\ufffd")

    cut = await ask(backend, {"prompt": "hello", "stop": stop, **GREEDY}, operation=Operation.COMPLETION)

    assert cut["choices"][0]["text"] == said.partition(stop)[0]
    assert cut["choices"][0]["finish_reason"] == "stop"


async def test_completion_tells_the_ids_of_all_tokens_also_of_the_one_that_ends_it(backend: Backend) -> None:
    """As many as its usage counts, whole and streamed, though the last one has no text."""
    asked = {"prompt": [97, 98], "temperature": 0, "max_tokens": 12, "return_token_ids": True, "ignore_eos": True}
    free = (await ask(backend, asked, operation=Operation.COMPLETION))["choices"][0]["token_ids"]
    end = next(token for place, token in enumerate(free) if place > 2 and token not in free[:place])
    asked["stop_token_ids"] = [end]

    whole = await ask(backend, asked, operation=Operation.COMPLETION)
    streamed = event_values(
        await read_all(await backend.send(make_call(operation=Operation.COMPLETION, stream=True, extra=asked)))
    )
    told = [token for value in streamed for choice in value["choices"] for token in choice["token_ids"]]

    assert whole["choices"][0]["prompt_token_ids"] == [97, 98]
    assert told == whole["choices"][0]["token_ids"] == free[: free.index(end) + 1]
    assert whole["usage"]["completion_tokens"] == len(told)
    assert (whole["choices"][0]["finish_reason"], chr(end) in whole["choices"][0]["text"]) == ("stop", False)


async def test_prediction_that_comes_true_is_accepted(backend: Backend) -> None:
    """What the model would have said anyway is taken from the prediction, and the usage says so."""
    asked = {"temperature": 0, "max_tokens": 40, "ignore_eos": True, "logit_bias": {"64": 100}}
    plain = (await ask(backend, asked))["choices"][0]["message"]["content"]

    body = await ask(backend, {**asked, "prediction": {"type": "content", "content": plain}})

    assert body["choices"][0]["message"]["content"] == plain
    assert plain == "a" * 40
    assert body["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 8


async def test_predicted_text_that_comes_true_is_accepted_and_not_told(pair: Any) -> None:
    """The gateway's own expectation saves steps; the answer and its usage are as without."""
    backend = build(pair, speculate="ngram")
    await backend.open()
    asked = {"temperature": 0, "max_tokens": 40, "ignore_eos": True, "logit_bias": {"64": 100}}
    plain = await ask(backend, asked)

    body = await ask(backend, asked, predicted=Prediction("a" * 60, "turn"))

    assert (body["choices"], body["usage"]["completion_tokens"]) == (plain["choices"], 40)
    assert "completion_tokens_details" not in body["usage"]
    assert isinstance(backend, ModelServer)
    statistics = backend.model_statistics()
    assert statistics is not None
    assert statistics.accepted_predicted > 8
    await backend.aclose()


async def test_embeddings_are_unit_vectors_in_both_forms(backend: Backend) -> None:
    """Numbers and base64 say the same; fewer dimensions are the first ones at length one."""
    asked = {"input": ["one", "two", "one"]}

    plain = await ask(backend, asked, operation=Operation.EMBEDDING)
    packed = await ask(backend, {**asked, "encoding_format": "base64"}, operation=Operation.EMBEDDING)
    short = await ask(backend, {**asked, "dimensions": 8}, operation=Operation.EMBEDDING)

    vectors = [each["embedding"] for each in plain["data"]]
    assert [len(vector) for vector in vectors] == [32, 32, 32]
    assert math.fsum(value * value for value in vectors[0]) == pytest.approx(1, abs=1e-5)
    assert vectors[0] == pytest.approx(vectors[2], abs=1e-4)
    assert vectors[0] != pytest.approx(vectors[1], abs=1e-2)
    assert list(struct.unpack("<32f", base64.b64decode(packed["data"][0]["embedding"]))) == pytest.approx(
        vectors[0], abs=1e-4
    )
    length = math.sqrt(math.fsum(value * value for value in vectors[0][:8]))
    assert short["data"][0]["embedding"] == pytest.approx([value / length for value in vectors[0][:8]], abs=1e-4)
    assert plain["usage"] == {"prompt_tokens": 9, "total_tokens": 9}


async def test_embedding_of_a_text_that_fills_the_context_is_made(backend: Backend) -> None:
    """Nothing follows it, so it needs no room for that."""
    body = await ask(backend, {"input": [5] * 512}, operation=Operation.EMBEDDING)

    assert body["usage"]["prompt_tokens"] == 512


async def test_model_statistics_count_what_was_done(backend: Backend) -> None:
    """Tokens, ends, times and the engine's own numbers are there for the metrics."""
    assert isinstance(backend, ModelServer)
    await ask(backend, {"temperature": 0, "max_tokens": 12, "ignore_eos": True})
    statistics = backend.model_statistics()
    assert statistics is not None
    [times] = backend.take_answer_times()

    assert (statistics.model, statistics.prompt, statistics.generated) == ("target", 5, 12)
    assert statistics.finished == {"length": 1}
    assert statistics.started == 1
    assert statistics.steps > 0
    assert 0 < times.first_token_s <= times.total_s
    assert times.num_tokens == 12
    assert backend.take_answer_times() == []


async def test_client_that_leaves_frees_the_engine(backend: Backend) -> None:
    """What it had in hand is given up within a moment."""
    assert isinstance(backend, ModelServer)
    reply = await backend.send(make_call(extra={"max_tokens": 400, "ignore_eos": True}, stream=True))

    await reply.aclose()

    async with asyncio.timeout(5):
        while (statistics := backend.model_statistics()) is None or statistics.running or statistics.waiting:
            await asyncio.sleep(0.005)


async def test_closed_backend_can_be_opened_by_its_successor(pair: Any) -> None:
    """A reload builds the next one beside the old one, which is closed later."""
    first, second = build(pair), build(pair, quantization="int8")
    await first.open()
    await second.open()
    await first.aclose()

    assert await ask(second, GREEDY)
    await second.aclose()


async def test_folder_without_a_model_fails_the_opening(tmp_path: Path) -> None:
    """The folder, and what it lacks, are named."""
    kind = Registry().kind("engine")
    backend = kind.build("local", kind.config(model=str(tmp_path)), SystemClock())

    with pytest.raises(ConfigurationError, match=r"backends\.local: .*" + tmp_path.name):
        await backend.open()
    await backend.aclose()


async def test_draft_with_another_tokenizer_fails_the_opening(pair: Any, tmp_path: Path) -> None:
    """It would propose other words than it means."""
    for file in pair.draft.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    written = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = written["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(written), encoding="utf-8")
    backend = build(pair, draft=str(tmp_path))

    with pytest.raises(ConfigurationError, match=r"backends\.local\.draft: .* has another tokenizer than"):
        await backend.open()
    await backend.aclose()


def test_folder_that_is_not_there_fails_the_building(tmp_path: Path) -> None:
    """That much is seen before anything is loaded."""
    kind = Registry().kind("engine")

    with pytest.raises(ConfigurationError, match=r"backends\.local\.draft: there is no folder"):
        kind.build("local", kind.config(model=str(tmp_path), draft=str(tmp_path / "nowhere")), SystemClock())


@pytest.fixture(scope="module")
def gateway(pair: Any) -> Iterator[Gateway]:
    """`slipstream serve --model DIR --draft DIR`."""
    args = ["--model", str(pair.target), "--draft", str(pair.draft), "--device", "cpu"]
    with running_gateway(None, args=args) as gateway:
        yield gateway


async def test_serve_model_answers_openais_client(gateway: Gateway) -> None:
    """The whole way: lists the folder by its name, streams to the official client, embeds."""
    async with AsyncOpenAI(base_url=gateway.url + "/v1", api_key="-") as client:
        listed = [model.id async for model in client.models.list()]
        whole = await client.chat.completions.create(
            model="target", messages=[{"role": "user", "content": "hello"}], temperature=0, max_tokens=12
        )
        stream = await client.chat.completions.create(
            model="target", messages=[{"role": "user", "content": "hello"}], temperature=0, max_tokens=12, stream=True
        )
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        embedded = await client.embeddings.create(model="target", input=["a", "b"])

    assert listed == ["target"]
    assert whole.choices[0].message.content == streamed
    assert [len(item.embedding) for item in embedded.data] == [32, 32]


async def test_serve_model_shows_vllms_metrics(gateway: Gateway) -> None:
    """Panels made for vLLM find their names, labelled with the model and its backend."""
    async with httpx.AsyncClient(verify=False, base_url=gateway.url) as client:
        await client.post(
            "/v1/completions", json={"model": "target", "prompt": "hi", "max_tokens": 3, "ignore_eos": True}
        )
    metrics = await gateway.metrics()

    labels = {"model_name": "target", "engine": "model"}
    assert metrics.value("vllm:generation_tokens_total", **labels) >= 3
    assert metrics.value("vllm:request_success_total", finished_reason="length", **labels) >= 1
    assert metrics.value("vllm:time_to_first_token_seconds_count", **labels) >= 1
    assert metrics.value("vllm:request_queue_time_seconds_count", **labels) >= 1
    assert metrics.value("slipstream_engine_places", **labels) == 64
    assert "vllm:kv_cache_usage_perc{" in metrics.text


async def test_serve_model_too_long_prompt_names_the_code(gateway: Gateway) -> None:
    """What agents act on, through the whole gateway."""
    async with httpx.AsyncClient(verify=False, base_url=gateway.url) as client:
        answer = await client.post(
            "/v1/chat/completions", json={"model": "target", "messages": [{"role": "user", "content": "x" * 600}]}
        )

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
