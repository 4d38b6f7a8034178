"""How good a model is on a text or on questions with known answers, from log-probabilities alone: nothing is drawn.

A text gives perplexity (the exponential of the mean loss) a token and a byte; the latter compares models of different
tokenizers. Questions give the share of answers that greedy decoding would write word for word, since it does exactly
where every token of the answer is the likeliest one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from backends.engine.errors import EngineError, ModelError, OutOfMemory, RequestRefused
from backends.engine.kv.memory import KVCache
from backends.engine.model.decoder import Decoder, load_decoder
from backends.engine.options import Device
from backends.engine.step.flatten import Span, build_batch
from backends.engine.text.tokenizer import Tokenizer
from kernels.dispatch import select_ops
from kernels.paging import PAGE_SIZE

Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do, in tokens."""

_MOST_PASSAGES = 16
"""Read at once."""
_CHUNK_ROWS = 64
"""Rows of logits at once: a vocabulary of 256 k then takes 64 MiB."""
_LARGEST_EXPONENT = 700.0
"""Where exponentials still are numbers."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Tokens to read; those from `first` (at least 1) on are scored, each given all before it."""

    tokens: list[int]
    first: int


@dataclass(frozen=True, slots=True)
class PassageScores:
    """Of one passage: the scored tokens' log-probabilities; and the likeliest token in each one's place, and after."""

    logprobs: list[float]
    likeliest: list[int]


@dataclass(frozen=True, slots=True)
class Example:
    """A question with its answer. `ends`: tokens of which one must follow the answer; none of them where empty."""

    passage: Passage
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TextQuality:
    """Of a text: `loss` is the negated log-probability of all its scored tokens, which spell `num_bytes`."""

    num_tokens: int
    num_bytes: int
    loss: float

    @property
    def token_perplexity(self) -> float:
        """Among how many tokens the model might as well have guessed each time."""
        return math.exp(min(self.loss / self.num_tokens, _LARGEST_EXPONENT))

    @property
    def byte_perplexity(self) -> float:
        """The same a byte, whatever the tokens."""
        return math.exp(min(self.loss / self.num_bytes, _LARGEST_EXPONENT))


@dataclass(frozen=True, slots=True)
class AnswerQuality:
    """Of answers: the share (0..1) that greedy decoding would write, and the mean log-probability of an answer."""

    num_answers: int
    exact_share: float
    mean_logprob: float


class PassageReader:
    """Reads passages with a model, several at once; `context` is the longest. Raises OutOfMemory."""

    def __init__(self, decoder: Decoder, *, context: int, device: torch.device) -> None:
        self._decoder = decoder
        self._context = context
        self._device = device
        num_pages = -(-context // PAGE_SIZE) + _MOST_PASSAGES
        self._cache = KVCache(decoder.config, num_pages, dtype=decoder.dtype, device=device)

    @classmethod
    def from_folder(cls, folder: Path, *, quantization: str | None, context: int, device: Device) -> PassageReader:
        """With the model of a folder, rounded to `quantization` while it is loaded. Raises ModelError, OutOfMemory."""
        has_cuda = torch.cuda.is_available()
        if device == "cuda" and not has_cuda:
            raise ModelError("device is 'cuda', but PyTorch finds no CUDA device; take 'cpu' or 'auto'")
        place = torch.device("cuda" if device != "cpu" and has_cuda else "cpu")
        ops = select_ops(place.type)
        try:
            decoder = load_decoder(
                folder, dtype=None, device=place, ops=ops, quantization=quantization, max_positions=context
            )
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise OutOfMemory(f"the weights of {folder} do not fit on {place} ({error})") from error
        return cls(decoder, context=context, device=place)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the model's parameters in memory."""
        return self._decoder.weight_bytes

    @property
    def context(self) -> int:
        """Tokens of the longest passage."""
        return self._context

    def read(self, passages: Sequence[Passage], progress: Progress) -> list[PassageScores]:
        """One reading a passage, in their order. No passage may be longer than the context."""
        total, done = sum(len(passage.tokens) for passage in passages), 0
        readings: list[PassageScores] = []
        with torch.inference_mode():
            while len(readings) < len(passages):
                together = self._together(passages[len(readings) : len(readings) + _MOST_PASSAGES])
                readings += self._step(together)
                done += sum(len(passage.tokens) for passage in together)
                progress(done, total)
        return readings

    def _together(self, passages: Sequence[Passage]) -> list[Passage]:
        """The first of them, as many as make no more tokens than one of the longest."""
        taken: list[Passage] = []
        num_tokens = 0
        for passage in passages:
            num_tokens += len(passage.tokens)
            if taken and num_tokens > self._context:
                break
            taken.append(passage)
        return taken

    def _step(self, passages: Sequence[Passage]) -> list[PassageScores]:
        spans: list[Span] = []
        rows: list[int] = []
        wanted: list[int] = []
        start, page = 0, 0
        for passage in passages:
            end = page + -(-len(passage.tokens) // PAGE_SIZE)
            spans.append(Span(passage.tokens, 0, list(range(page, end))))
            # Behind the last token nothing is known: what stands there is not looked at.
            wanted += [*passage.tokens[passage.first :], 0]
            rows += range(start + passage.first - 1, start + len(passage.tokens))
            start, page = start + len(passage.tokens), end
        hidden = self._decoder.forward(build_batch(spans, rows, self._device), self._cache.layers)
        logprobs: list[float] = []
        likeliest: list[int] = []
        for first in range(0, len(rows), _CHUNK_ROWS):
            chunk = torch.tensor(wanted[first : first + _CHUNK_ROWS], device=self._device)
            scores = torch.log_softmax(self._decoder.logits(hidden[first : first + _CHUNK_ROWS]), dim=-1)
            logprobs += scores.gather(1, chunk.unsqueeze(1)).squeeze(1).tolist()
            likeliest += scores.argmax(dim=-1).tolist()
        readings = []
        row = 0
        for passage in passages:
            end = row + len(passage.tokens) - passage.first
            readings.append(PassageScores(logprobs[row:end], likeliest[row : end + 1]))
            row = end + 1
        return readings


def text_quality(reader: PassageReader, tokenizer: Tokenizer, text: str, progress: Progress) -> TextQuality:
    """Reads the whole text in windows of the context, each half over the one before, so that every token but the
    first half has at least half a context before it. Raises EngineError for a text that is too short.
    """
    prefix = _prefix(tokenizer)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    num_bytes = len(text.encode())
    if not prefix and tokens:
        # Nothing stands before the first token, so it cannot be scored.
        num_bytes -= len(tokenizer.first_bytes(tokens[0]))
    passages = windows(tokens, prefix, reader.context)
    if not passages or not num_bytes:
        raise EngineError("the text is too short: not a single token can be scored")
    readings = reader.read(passages, progress)
    loss = -math.fsum(logprob for reading in readings for logprob in reading.logprobs)
    return TextQuality(sum(len(reading.logprobs) for reading in readings), num_bytes, loss)


def windows(tokens: list[int], prefix: list[int], context: int) -> list[Passage]:
    """Passages of at most `context` tokens that score each of `tokens` once; `prefix` stands in front of every one.

    Without a prefix the very first token is not scored. `context` has room for two tokens behind the prefix.
    """
    room = context - len(prefix)
    passages = []
    scored, end = 0 if prefix else 1, min(room, len(tokens))
    while scored < end:
        start = max(end - room, 0)
        passages.append(Passage(prefix + tokens[start:end], len(prefix) + scored - start))
        scored, end = end, min(end + room // 2, len(tokens))
    return passages


def answer_quality(reader: PassageReader, examples: Sequence[Example], progress: Progress) -> AnswerQuality:
    """Reads every question with its answer; `examples` are not empty, and none is longer than the context."""
    readings = reader.read([example.passage for example in examples], progress)
    pairs = list(zip(examples, readings, strict=True))
    return AnswerQuality(
        num_answers=len(examples),
        exact_share=sum(_is_exact(example, reading) for example, reading in pairs) / len(examples),
        mean_logprob=math.fsum(logprob for reading in readings for logprob in reading.logprobs) / len(examples),
    )


def read_examples(text: str, where: str, tokenizer: Tokenizer, *, context: int) -> list[Example]:
    """The questions in the text of a .jsonl file: objects with "prompt" (a text) or "messages" (a chat), and "answer".

    An answer to a chat has to end where it does; after a prompt anything may follow. `where` is what messages call the
    file. Raises EngineError, which names the line.
    """
    examples = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            examples.append(_example(line, f"{where}, line {number}", tokenizer, context))
    if not examples:
        raise EngineError(f'{where} is empty; it needs a line such as {{"prompt": "2 + 2 =", "answer": " 4"}}')
    return examples


def _example(line: str, where: str, tokenizer: Tokenizer, context: int) -> Example:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise EngineError(f"{where} is not JSON: {error}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("answer"), str) or not fields["answer"]:
        raise EngineError(f'{where}: expected an object with a text as "answer"')
    if ("prompt" in fields) == ("messages" in fields):
        raise EngineError(f'{where}: expected either "prompt" or "messages"')
    question, is_chat = _question(fields, where, tokenizer)
    # A chat's template writes the special tokens itself.
    tokens = tokenizer.encode(question + fields["answer"], add_special_tokens=not is_chat)
    asked = tokenizer.encode(question, add_special_tokens=not is_chat)
    # Where the answer's first letters join the question's last token, the answer begins with the joint token.
    first = next((at for at, pair in enumerate(zip(asked, tokens, strict=False)) if pair[0] != pair[1]), len(asked))
    first = max(first, 1)
    if first >= len(tokens):
        raise EngineError(f"{where}: the answer adds no token to its question")
    if len(tokens) > context:
        raise EngineError(f"{where} has {len(tokens):,} tokens, more than the context of {context:,}; raise --context")
    return Example(Passage(tokens, first), tokenizer.eos_token_ids if is_chat else ())


def _question(fields: dict[str, Any], where: str, tokenizer: Tokenizer) -> tuple[str, bool]:
    """(what stands before the answer, whether it is a chat)."""
    prompt, messages = fields.get("prompt"), fields.get("messages")
    if "prompt" in fields:
        if not isinstance(prompt, str):
            raise EngineError(f'{where}: "prompt" is not a text')
        return prompt, False
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise EngineError(f'{where}: "messages" is not a list of objects')
    try:
        return tokenizer.render_chat(messages), True
    except RequestRefused as error:
        raise EngineError(f"{where}: {error}") from error


def _is_exact(example: Example, reading: PassageScores) -> bool:
    passage = example.passage
    *answer, after = reading.likeliest
    return answer == passage.tokens[passage.first :] and (not example.ends or after in example.ends)


def _prefix(tokenizer: Tokenizer) -> list[int]:
    """The special tokens that the model wants in front of every text."""
    plain, whole = (tokenizer.encode("a", add_special_tokens=special) for special in (False, True))
    starts = [at for at in range(len(whole)) if whole[at : at + len(plain)] == plain]
    return whole[: starts[0]] if starts else []
