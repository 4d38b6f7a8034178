"""The embedded pair: its questions are right and well split, its tokenizer exact, its weights what the scores say."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from backends.engine.demo_models import export as exporting
from backends.engine.demo_models import score as scoring
from backends.engine.demo_models import train as training
from backends.engine.demo_models.facts import CAPITALS
from backends.engine.demo_models.generator import TASK_NAMES, Conversation, held_out_conversation, training_conversation
from backends.engine.demo_models.muon import orthogonalize
from backends.engine.demo_models.networks import DRAFT_SHAPE, make_network, quicken
from backends.engine.demo_models.tokenizer import encode, train_tokenizer
from backends.engine.demo_models.training_stream import TrainingStream, held_out_batches
from backends.engine.demo_models.turn import is_held_out
from backends.engine.text.tokenizer import Tokenizer as ServedTokenizer
from tests.support.engine.demo_oracle import ORACLES, follow_up

PACKAGE = Path(exporting.__file__).parent
PAGE = PACKAGE.parents[2] / "docs" / "demo-models.md"
SCORES = PACKAGE / "scores.json"
needs_weights = pytest.mark.skipif(not SCORES.exists(), reason="no weights exported yet")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer from few conversations: smaller than the real one, and made in the same way."""
    return train_tokenizer(0, conversations=400)


@pytest.fixture(scope="module")
def trained() -> list[Conversation]:
    """What training draws: none of the tests changes it."""
    rng = Random(5)
    return [training_conversation(rng) for _ in range(6000)]


def test_generator_same_seed_draws_the_same() -> None:
    """The seed alone decides what is drawn."""
    first, again, other = ([training_conversation(rng) for _ in range(50)] for rng in (Random(3), Random(3), Random(4)))

    assert first == again
    assert first != other


def test_split_training_never_meets_held_out(trained: list[Conversation]) -> None:
    """No prompt that is scored is ever trained on, in whatever turn it stands."""
    rng = Random(5)
    seen = {(turn.context, turn.prompt) for conversation in trained for turn in conversation.turns}
    conversations = [held_out_conversation(rng, task) for task in TASK_NAMES for _ in range(25)]

    assert all(not is_held_out(turn) for conversation in conversations for turn in conversation.turns[:-1])
    assert all(is_held_out(conversation.turns[-1]) for conversation in conversations)
    assert {(c.turns[-1].context, c.turns[-1].prompt) for c in conversations}.isdisjoint(seen)


def test_split_every_task_has_held_out_prompts_enough() -> None:
    """Each task can be scored on many different prompts."""
    rng = Random(6)

    for task in TASK_NAMES:
        asked = [held_out_conversation(rng, task) for _ in range(30)]
        assert {conversation.task for conversation in asked} == {task}
        assert len({json.dumps(conversation.messages()) for conversation in asked}) >= 25, task


def test_generator_covers_every_task_in_training(trained: list[Conversation]) -> None:
    """Nothing is scored that was never taught."""
    seen = {turn.task for conversation in trained[:800] for turn in conversation.turns}

    assert seen == set(TASK_NAMES)


def test_answers_agree_with_an_independent_calculation(trained: list[Conversation]) -> None:
    """Every computed answer is right, worked out again from the prompt's text."""
    checked: dict[str, int] = defaultdict(int)

    for conversation in trained:
        former = ""
        for turn in conversation.turns:
            if turn.task in ORACLES:
                assert ORACLES[turn.task](turn.prompt) == turn.answer, turn.prompt
                checked[turn.task] += 1
            elif turn.task == "follow_up":
                assert follow_up(turn.prompt, former) == turn.answer, turn.prompt
                checked[turn.task] += 1
            former = turn.answer

    assert min(checked[task] for task in (*ORACLES, "follow_up")) > 100


def test_answers_in_json_hold_what_the_prompt_says(trained: list[Conversation]) -> None:
    """Objects have the fields asked for, in that order, with values from the text."""
    turns = [turn for conversation in trained for turn in conversation.turns if turn.task == "json"]

    for turn in turns:
        answer = json.loads(turn.answer)
        assert json.dumps(answer) == turn.answer
        if isinstance(answer, list):
            assert re.search(r"list of ([\w, ]+)\.", turn.prompt)[1].replace(" and ", ", ").split(", ") == answer  # type: ignore[index]
        elif "sum" in answer:
            assert answer["sum"] == answer["a"] + answer["b"]
            assert f"{answer['a']} + {answer['b']}" in turn.prompt
        elif "capital" in answer:
            assert (answer["country"], answer["capital"]) in CAPITALS
            assert answer["country"] in turn.prompt
        else:
            wording, _, text = turn.prompt.partition(": ")
            assert re.findall("|".join(answer), wording) == list(answer)
            assert all(re.search(rf"\b{value}\b", text) for value in answer.values())


def test_answers_with_tools_call_an_offered_tool() -> None:
    """A call names an offered tool and passes what the prompt names; a result is told."""
    rng = Random(10)

    for _ in range(200):
        conversation = held_out_conversation(rng, "tools")
        for turn in conversation.turns:
            if turn.role == "tool":
                assert turn.answer == f"The result is {json.loads(turn.prompt)['result']}."
                continue
            call = json.loads(turn.answer.removeprefix("<tool_call>").removesuffix("</tool_call>"))
            assert call["name"] in [tool.name for tool in conversation.tools]
            assert all(str(value) in turn.prompt for value in call["arguments"].values())


def test_answers_are_a_function_of_the_prompts(trained: list[Conversation]) -> None:
    """The same prompts never have two answers, so an exact share of 1 is possible."""
    answers: dict[str, set[str]] = defaultdict(set)
    for conversation in trained:
        *prompt, answer = conversation.messages()
        answers[json.dumps([[tool.name for tool in conversation.tools], prompt])].add(answer["content"])

    assert [prompt for prompt, given in answers.items() if len(given) > 1] == []


@settings(deadline=None, max_examples=60)
@given(text=st.text(max_size=60))
def test_tokenizer_any_text_comes_back(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    """Bytes are the fallback, so no text is lost."""
    tokens = tokenizer.encode(text, add_special_tokens=False)

    assert tokenizer.decode(tokens) == text


def test_tokenizer_digits_stand_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    """Numbers are digits, so that arithmetic can be learned."""
    assert [tokenizer.decode([token]) for token in tokenizer.encode("1234")] == ["1", "2", "3", "4"]
    assert not any(re.search(r"\d.|.\d", entry) for entry in tokenizer.get_vocab())


def test_tokenizer_marks_are_single_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    """Turn marks vanish from decoded text; the marks of a tool call stay."""
    text = "<tool_call>x</tool_call><|im_end|><|endoftext|>"
    tokens = tokenizer.encode(text)

    assert len(tokens) == 5
    assert tokenizer.decode(tokens, skip_special_tokens=True) == "<tool_call>x</tool_call>"


def test_template_several_turns_and_prompt(tokenizer: PreTrainedTokenizerFast) -> None:
    """System, several turns, parts of text, calls with their results, and the opening of the answer."""
    call = {"type": "function", "function": {"name": "get_time", "arguments": '{"city": "Oslo"}'}}
    tool = {"type": "function", "function": {"name": "get_time", "parameters": {"properties": {"city": {}, "day": {}}}}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "!"}]},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "What time is it in Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": '{"result": "9"}'},
    ]

    text = tokenizer.apply_chat_template(messages, tools=[tool], add_generation_prompt=True, tokenize=False)

    assert text == (
        "<|im_start|>system\nAnswer briefly.\nTools: get_time(city, day)<|im_end|>\n"
        "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>\n"
        "<|im_start|>user\nWhat time is it in Oslo?<|im_end|>\n"
        "<|im_start|>assistant\n<tool_call>\n"
        '{"name": "get_time", "arguments": {"city": "Oslo"}}\n</tool_call><|im_end|>\n'
        '<|im_start|>tool\n{"result": "9"}<|im_end|>\n<|im_start|>assistant\n'
    )


@pytest.mark.parametrize("name", ["target", "draft"])
def test_template_system_message_in_parts_is_the_same_text(name: str) -> None:
    """Servers that hand a template every content as a list of parts, as vLLM does, get what others get: from
    transformers and from our own renderer.
    """
    whole = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Hello!"}]
    parts: list[dict[str, Any]] = [
        {"role": message["role"], "content": [{"type": "text", "text": message["content"]}]} for message in whole
    ]
    packaged = AutoTokenizer.from_pretrained(PACKAGE / name)

    texts = [
        packaged.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        for messages in (whole, parts)
    ]
    texts += [ServedTokenizer(PACKAGE / name).render_chat(messages) for messages in (whole, parts)]

    assert (
        texts
        == [
            "<|im_start|>system\nAnswer briefly.<|im_end|>\n<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
        ]
        * 4
    )


def test_encoding_is_the_templates_and_marks_the_answers(tokenizer: PreTrainedTokenizerFast) -> None:
    """Training sees exactly the tokens that serving will send, and learns the answers with their ends only."""
    rng = Random(12)

    for conversation in [training_conversation(rng) for _ in range(150)]:
        tokens, is_answer = encode(tokenizer, conversation)
        schemas: list[Any] = [tool.schema() for tool in conversation.tools]
        whole = tokenizer.apply_chat_template(conversation.messages(), tools=schemas or None, return_dict=False)
        marked = tokenizer.decode([token for token, flag in zip(tokens, is_answer, strict=True) if flag])

        assert whole == [*tokens, *tokenizer.encode("\n")]
        assert marked == "".join(f"{turn.answer}<|im_end|>" for turn in conversation.turns)


def test_stream_labels_are_the_next_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    """Each marked position predicts the token that follows it, and batches keep to their size."""
    stream = TrainingStream(tokenizer, seed=1, batch_tokens=1024)
    batches = list(islice(stream, 16))
    batch = batches[0]
    width = batch.tokens.shape[1]
    inside = (batch.rows + 1) % width != 0
    following = batch.tokens.flatten()[(batch.rows + 1)[inside]]
    is_end = batch.labels[inside] == tokenizer.eos_token_id

    assert all(batch.num_tokens <= 1024 for batch in batches)
    # the last one of a pool is what was left over
    assert sum(batch.num_tokens < 512 for batch in batches) <= 1
    assert torch.equal(batch.owner, batch.rows // width)
    assert torch.equal(following[~is_end], batch.labels[inside][~is_end])


def test_folded_attention_is_the_stock_attention(tokenizer: PreTrainedTokenizerFast) -> None:
    """Training computes the very network that is exported."""
    network = make_network(DRAFT_SHAPE, tokenizer)
    [[batch, *_], *_] = held_out_batches(tokenizer, seed=2, per_task=2).values()
    with torch.no_grad():
        expected = network(input_ids=batch.tokens).logits
        quicken(network, compiles=False)
        actual = network(input_ids=batch.tokens).logits

    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 32, 96), (1, 96, 32), (3, 48, 48)])
def test_orthogonalize_evens_the_singular_values(shape: tuple[int, int, int]) -> None:
    """Whatever the gradient's spectrum, all directions move about equally."""
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonalize(matrices).float())

    assert values.min() > 0.3
    assert values.max() < 1.4


def test_report_names_what_has_learned_and_nothing_else() -> None:
    """While the draft learns alone, the target is not said to have a loss."""
    said = training.learned("target", [], 327) + training.learned("draft", [0.5, 0.25], 110)

    assert said == "  draft loss 0.3750, step 110"


def test_training_resumes_exports_and_scores(tmp_path: Path) -> None:
    """A short run can be stopped, taken up again, exported and scored, and its pair trained further."""
    options = ["--out", str(tmp_path / "run"), "--threads", "1", "--batch-tokens", "512", "--held-out", "1"]
    fresh = ["--tokenizer-conversations", "400"]
    training.main([*options, *fresh, "--minutes", "0.05", "--draft-minutes", "0.02"])
    before = json.loads((tmp_path / "run" / "record.json").read_text())
    # More than both had: a slow step may have taken longer than all the time of the first run.
    minutes = before["spent_s"] / 60 + 0.05
    training.main([*options, "--minutes", str(minutes), "--draft-minutes", "0.02", "--resume"])
    after = json.loads((tmp_path / "run" / "record.json").read_text())

    scores = exporting.export(tmp_path / "run", tmp_path / "pair", count=15)
    starts = ["--start", str(tmp_path / "pair"), "--start", str(tmp_path / "pair"), "--share-of-rates", "0.1"]
    training.main([*options, *starts, "--out", str(tmp_path / "more"), "--minutes", "0.01", "--draft-minutes", "0.01"])
    more = json.loads((tmp_path / "more" / "record.json").read_text())

    assert more["former"] == {name: scores[name] for name in ("trained_tokens", "cpu_minutes")}
    assert scores["trained_tokens"] == after["tokens"]
    assert after["tokens"] > before["tokens"]
    assert set(scores["models"]) == {"target", "draft"}
    assert sorted(path.name for path in (tmp_path / "pair").iterdir()) == ["draft", "scores.json", "target"]


@needs_weights
def test_package_is_small_and_whole() -> None:
    """Both folders hold what a reader of Hugging Face folders wants, in 16 MB together."""
    files = [path for name in ("target", "draft") for path in (PACKAGE / name).iterdir()]

    assert sum(path.stat().st_size for path in files) <= 16_000_000
    for name in ("target", "draft"):
        config = json.loads((PACKAGE / name / "config.json").read_text())
        assert config["rope_parameters"]["rope_theta"] == config["rope_theta"]
        assert config["dtype"] == "bfloat16"
        assert (PACKAGE / name / "generation_config.json").exists()
    assert (PACKAGE / "target" / "tokenizer.json").read_bytes() == (PACKAGE / "draft" / "tokenizer.json").read_bytes()


@needs_weights
def test_package_scores_keep_the_promise() -> None:
    """Final weights answer nine prompts in ten; the draft is clearly worse than its target."""
    scores = json.loads(SCORES.read_text())
    target, draft = scores["models"]["target"], scores["models"]["draft"]

    assert scores["is_interim"] or target["exact"] >= 0.9
    assert draft["exact"] <= target["exact"] - 0.05
    assert set(target["tasks"]) == set(draft["tasks"]) == set(TASK_NAMES)


@needs_weights
def test_package_target_answers_by_itself() -> None:
    """The packaged folder alone gives about the scores that stand beside it."""
    asked = scoring.held_out_set(24, seed=1)
    model = AutoModelForCausalLM.from_pretrained(PACKAGE / "target", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(PACKAGE / "target", padding_side="left")
    answers = scoring.greedy_answers(model, tokenizer, asked)
    right = sum(answer == c.turns[-1].answer for answer, c in zip(answers, asked, strict=True)) / len(asked)

    assert right >= json.loads(SCORES.read_text())["models"]["target"]["exact"] - 0.3


@needs_weights
def test_page_shows_the_packaged_scores() -> None:
    """The table that people read is the one that was measured."""
    assert exporting.score_table(json.loads(SCORES.read_text())) in PAGE.read_text(encoding="utf-8")
