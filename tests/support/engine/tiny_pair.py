"""A tiny random Qwen3 and a draft for it, with a tokenizer of bytes; and ears for what an engine says.

Weights are drawn wide, so that the likeliest token leads by far more than rounding can move it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from backends.engine.engine import Engine
from backends.engine.options import EngineOptions
from backends.engine.request import Event, Request, SamplingParams, TokenUsage

EOS = 256
VOCAB_SIZE = 258
MAX_CONTEXT = 512
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@dataclass(frozen=True)
class Pair:
    """Folders of the target, and of a draft that often agrees with it."""

    target: Path
    draft: Path


def make_pair(folder: Path) -> Pair:
    """Writes both models; the draft is the target with some noise on its weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(1)
    shape: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": MAX_CONTEXT,
        "tie_word_embeddings": True,
        "eos_token_id": EOS,
        "initializer_range": 0.3,
    }
    target, draft = (Qwen3ForCausalLM(Qwen3Config(num_hidden_layers=2, **shape)).float() for _ in range(2))
    noise = {name: weight + 0.04 * other for name, weight, other in _paired(target.state_dict(), draft.state_dict())}
    draft.load_state_dict(noise)
    pair = Pair(folder / "target", folder / "draft")
    for model, path in ((target, pair.target), (draft, pair.draft)):
        model.save_pretrained(path)
        save_byte_tokenizer(path)
    return pair


def options(pair: Pair, **changes: Any) -> EngineOptions:
    """A small engine on the CPU, without speculation unless told."""
    settings: dict[str, Any] = {
        "model": pair.target,
        "draft": pair.draft,
        "device": "cpu",
        "dtype": "float32",
        "max_sequences": 8,
        "max_batch_tokens": 256,
        "speculate": "off",
        "threads": 1,
    }
    return EngineOptions(**{**settings, **changes})


@contextmanager
def running(pair: Pair, **changes: Any) -> Iterator[Engine]:
    """An engine at work, closed at the end, with no page left in use. Its clock stands still, so that as much is
    drafted as there is room for, whether it would pay or not.
    """
    engine = Engine(options(pair, **changes), now=lambda: 0.0, rng=random.Random(1))
    engine.start()
    try:
        yield engine
        assert engine.statistics().scheduler.pool.num_used == 0
        assert engine.statistics().steps.num_failed == 0
    finally:
        engine.close()


@dataclass
class Answered:
    """What came back for one request."""

    events: list[Event] = field(default_factory=list)

    def tokens(self, index: int = 0) -> list[int]:
        """The tokens of one answer."""
        return [token for event in self.events if event.index == index for token in event.tokens]

    def text(self, index: int = 0) -> str:
        """The text of one answer."""
        return "".join(event.text for event in self.events if event.index == index)

    @property
    def last(self) -> Event:
        """The event that ended it."""
        return self.events[-1]

    @property
    def usage(self) -> TokenUsage:
        """The tokens of the whole request."""
        assert self.last.usage is not None
        return self.last.usage


class Listener:
    """A sink for any number of requests; waits for them to end."""

    def __init__(self) -> None:
        self.answers: dict[str, Answered] = {}
        self.batches: list[list[Event]] = []
        self._changed = threading.Condition()

    def __call__(self, events: list[Event]) -> None:
        """Take a step's events."""
        with self._changed:
            self.batches.append(events)
            for event in events:
                self.answers.setdefault(event.request_id, Answered()).events.append(event)
            self._changed.notify_all()

    def wait(self, request_id: str, num_events: int | None = None) -> Answered:
        """Wait until a request is over, or until so many events of it are there."""

        def is_there() -> bool:
            found = self.answers.get(request_id)
            if found is None:
                return False
            return found.last.is_last or (num_events is not None and len(found.events) >= num_events)

        with self._changed:
            assert self._changed.wait_for(is_there, timeout=120), f"request {request_id} did not go on"
            return self.answers[request_id]


def answer(engine: Engine, requests: Iterable[Request]) -> list[Answered]:
    """Submit all at once and wait for all."""
    listener = Listener()
    ids = []
    for request in requests:
        engine.submit(request, listener)
        ids.append(request.id)
    return [listener.wait(request_id) for request_id in ids]


def _paired(first: dict[str, Any], second: dict[str, Any]) -> Iterable[tuple[str, Any, Any]]:
    return ((name, first[name], second[name]) for name in first)


def save_byte_tokenizer(folder: Path) -> None:
    """A tokenizer of bytes, EOS behind them, with a chat template, into a model's folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>", "<start>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", bos_token="<start>")
    fast.chat_template = _TEMPLATE
    fast.save_pretrained(folder)
