"""Evaluation: every token scored once and as transformers scores it, answers judged as greedy decoding gives them."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.errors import EngineError, ModelError
from backends.engine.evaluate import (
    Example,
    Passage,
    PassageReader,
    TextQuality,
    answer_quality,
    read_examples,
    text_quality,
    windows,
)
from backends.engine.text.tokenizer import Tokenizer
from tests.support.engine.tiny_models import judge_logits
from tests.support.engine.tiny_pair import EOS, Pair, make_pair

TEXT = "Seven grey geese, one by one, cross the frozen lake. " * 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A tiny random model whose tokens are bytes."""
    return make_pair(tmp_path_factory.mktemp("pair"))


def opened(pair: Pair, *, context: int = 128, quantization: str | None = None) -> PassageReader:
    """The target on the CPU."""
    return PassageReader.from_folder(pair.target, quantization=quantization, context=context, device="cpu")


def quiet(done: int, total: int) -> None:
    """Progress that nobody watches."""


def judged(pair: Pair, tokens: list[int]) -> torch.Tensor:
    """Log-probabilities [length, vocab] by transformers."""
    from transformers import AutoModelForCausalLM

    return judge_logits(AutoModelForCausalLM.from_pretrained(pair.target), tokens).log_softmax(dim=-1)


def greedy(pair: Pair, tokens: list[int], count: int) -> list[int]:
    """What transformers' model finds likeliest, token by token."""
    for _ in range(count):
        tokens = [*tokens, int(judged(pair, tokens)[-1].argmax())]
    return tokens


@given(num_tokens=st.integers(0, 60), num_prefix=st.integers(0, 2), room=st.integers(2, 20))
def test_windows_score_every_token_once_with_half_a_context(num_tokens: int, num_prefix: int, room: int) -> None:
    """All tokens in order, but the very first without a prefix; none long, and half a context before all but few."""
    tokens, prefix = list(range(num_tokens)), [-1] * num_prefix

    passages = windows(tokens, prefix, room + num_prefix)

    scored = [token for passage in passages for token in passage.tokens[passage.first :]]
    assert scored == tokens[0 if prefix else 1 :]
    for passage in passages:
        assert passage.tokens[:num_prefix] == prefix
        assert 1 <= passage.first < len(passage.tokens) <= room + num_prefix
        assert passage.tokens[num_prefix] in (0, passage.tokens[-1] - room + 1)
    assert all(passage.first - num_prefix >= room - room // 2 for passage in passages[1:])


def test_reader_scores_as_transformers_does(pair: Pair) -> None:
    """Log-probabilities and likeliest tokens of passages that are read together are those of each one alone."""
    passages = [
        Passage(list(b"grey geese"), 1),
        Passage(list(b"x" * 70), 65),
        Passage(list(b"frozen lake"), 10),
        Passage(list(range(100, 228)), 1),
    ]

    readings = opened(pair).read(passages, quiet)

    for passage, reading in zip(passages, readings, strict=True):
        expected = judged(pair, passage.tokens)[passage.first - 1 :]
        chosen = [expected[row, token].item() for row, token in enumerate(passage.tokens[passage.first :])]
        assert reading.logprobs == pytest.approx(chosen, abs=2e-4)
        assert reading.likeliest == expected.argmax(dim=-1).tolist()


def test_reader_tells_its_progress_in_tokens(pair: Pair) -> None:
    """Progress rises to the total, more than once where not all passages are read together."""
    told: list[tuple[int, int]] = []

    opened(pair, context=64).read([Passage([65] * 40, 1)] * 3, lambda done, total: told.append((done, total)))

    assert told == [(40, 120), (80, 120), (120, 120)]


def test_text_quality_is_the_perplexity_that_transformers_finds(pair: Pair) -> None:
    """Over windows as their own function cuts them: here a token is a byte, so both perplexities are one."""
    tokenizer = Tokenizer(pair.target)
    expected = 0.0
    for passage in windows(tokenizer.encode(TEXT), [], 64):
        logprobs = judged(pair, passage.tokens)
        expected -= sum(logprobs[at - 1, passage.tokens[at]].item() for at in range(passage.first, len(passage.tokens)))

    quality = text_quality(opened(pair, context=64), tokenizer, TEXT, quiet)

    assert (quality.num_tokens, quality.num_bytes) == (len(TEXT) - 1, len(TEXT) - 1)
    assert quality.loss == pytest.approx(expected, rel=1e-4)
    assert quality.token_perplexity == pytest.approx(math.exp(expected / (len(TEXT) - 1)), rel=1e-3)


def test_text_quality_by_the_byte_does_not_depend_on_tokens() -> None:
    """The same loss over the same bytes is the same quality, however many tokens it took."""
    many, few = TextQuality(100, 300, 200.0), TextQuality(50, 300, 200.0)

    assert many.byte_perplexity == few.byte_perplexity == pytest.approx(math.exp(2 / 3))
    assert many.token_perplexity < few.token_perplexity


def test_text_quality_of_a_hopeless_model_is_a_number() -> None:
    """A loss beyond what an exponential can hold does not end the comparison."""
    assert math.isfinite(TextQuality(1, 1, 1e6).token_perplexity)


def test_text_quality_of_next_to_nothing_is_an_error(pair: Pair) -> None:
    """A text of one token, without a special one before it, has nothing to score."""
    with pytest.raises(EngineError, match="too short"):
        text_quality(opened(pair), Tokenizer(pair.target), "x", quiet)


def test_answer_quality_is_exact_where_greedy_decoding_is(pair: Pair) -> None:
    """Of an answer as greedy decoding gives it and one that differs in its last token, one is right."""
    question = list(b"grey geese")
    right = greedy(pair, question, 5)
    wrong = [*right[:-1], (right[-1] + 1) % 256]
    examples = [Example(Passage(tokens, len(question))) for tokens in (right, wrong)]

    quality = answer_quality(opened(pair), examples, quiet)

    logprobs = judged(pair, right)
    common = sum(logprobs[at - 1, right[at]].item() for at in range(10, 14))
    last = logprobs[13, right[-1]].item() + logprobs[13, wrong[-1]].item()
    assert (quality.num_answers, quality.exact_share) == (2, 0.5)
    assert quality.mean_logprob == pytest.approx(common + last / 2, abs=1e-3)


def test_answer_quality_wants_an_end_after_a_chat(pair: Pair) -> None:
    """An answer that the model would go on with is not exact where it has to end."""
    question = list(b"grey geese")
    *answered, after = greedy(pair, question, 4)
    ends = ((), (after,), (after, 7), (after - 1,))
    examples = [Example(Passage(answered, len(question)), end) for end in ends]

    shares = [answer_quality(opened(pair), [example], quiet).exact_share for example in examples]

    assert shares == [1.0, 1.0, 1.0, 0.0]


def test_quantization_changes_quality_a_little(pair: Pair) -> None:
    """int8 weights are nearly as good, and not the same."""
    tokenizer = Tokenizer(pair.target)
    plain, rounded = (
        text_quality(opened(pair, quantization=method), tokenizer, TEXT, quiet).loss for method in (None, "int8")
    )

    assert 0 < abs(rounded / plain - 1) < 0.05


def test_examples_are_read_with_their_questions(pair: Pair) -> None:
    """Prompts and chats become tokens up to the answer and the answer's; a chat's answer has to end."""
    lines = [
        {"prompt": "2 + 2 =", "answer": " 4"},
        {"messages": [{"role": "user", "content": "Hello"}], "answer": "Hi!"},
    ]
    text = "\n\n".join(json.dumps(line) for line in lines)
    tokenizer = Tokenizer(pair.target)

    prompt, chat = read_examples(text, "questions", tokenizer, context=64)

    assert tokenizer.decode(prompt.passage.tokens[prompt.passage.first :]) == " 4"
    assert tokenizer.decode(chat.passage.tokens[: chat.passage.first]) == "Hello"
    assert tokenizer.decode(chat.passage.tokens[chat.passage.first :]) == "Hi!"
    assert (prompt.ends, chat.ends) == ((), (EOS,))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2 is not JSON"),
        ("[]", 'line 2: expected an object with a text as "answer"'),
        ('{"prompt": "a"}', 'line 2: expected an object with a text as "answer"'),
        ('{"prompt": "a", "answer": ""}', 'line 2: expected an object with a text as "answer"'),
        ('{"answer": "b"}', 'line 2: expected either "prompt" or "messages"'),
        ('{"prompt": "a", "messages": [], "answer": "b"}', 'line 2: expected either "prompt" or "messages"'),
        ('{"prompt": ["a"], "answer": "b"}', 'line 2: "prompt" is not a text'),
        ('{"messages": ["a"], "answer": "b"}', 'line 2: "messages" is not a list of objects'),
        ('{"prompt": "%s", "answer": "b"}' % ("a" * 70), "line 2 has 71 tokens, more than the context of 64"),
    ],
)
def test_examples_name_the_line_that_is_wrong(pair: Pair, line: str, problem: str) -> None:
    """A line that cannot be used is named, with what was expected there."""
    text = f'{{"prompt": "a", "answer": "b"}}\n{line}\n'

    with pytest.raises(EngineError) as raised:
        read_examples(text, "questions", Tokenizer(pair.target), context=64)

    assert f"questions, {problem}" in str(raised.value)


def test_examples_of_an_empty_file_are_an_error(pair: Pair) -> None:
    """A file without a question says what one looks like."""
    with pytest.raises(EngineError, match="questions is empty; it needs a line such as"):
        read_examples("\n", "questions", Tokenizer(pair.target), context=64)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a device that is not there")
def test_reader_without_the_device_says_so(pair: Pair) -> None:
    """A GPU that is asked for and missing is an error, not a CPU."""
    with pytest.raises(ModelError, match="no CUDA device"):
        PassageReader.from_folder(pair.target, quantization=None, context=64, device="cuda")
