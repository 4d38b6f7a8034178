"""What goes into the engine and what comes out: requests, and the events of a step. Plain data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Pooling = Literal["mean", "last"]
FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of an answer are chosen. Ranges are checked by `sampling.check_params`.

    `temperature` 0 is greedy. `top_p` in (0, 1], `top_k` 0 is off, `min_p` in [0, 1]. `logprobs` is the number of
    alternatives reported for each token, None for none at all. `seed` None draws one.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    grammar: str | None = None
    """A grammar as the grammar library takes it (see `choosing/grammar.py`): JSON mode, a JSON schema, a regex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of the engine; `id` is unique among those in flight.

    `n` answers to one prompt, the best of `best_of` by mean log-probability where that is more. `prompt_logprobs`
    reports that many alternatives at each prompt position from `prompt_logprobs_from` on: echo, and scoring.
    `pooling` asks for an embedding of the prompt instead of an answer. `salt` separates prefix caches (tenants),
    `adapter` names a LoRA. Lower `priority` goes first. `prediction`: tokens the answer will probably repeat.
    `continues_text`: the answer goes on where the prompt's text ends, so a space that begins it belongs to it.
    `emitted`: tokens of an answer that broke off elsewhere; it goes on behind them as if it never had (see `Event`).
    `by_rounds`: after each step that brought tokens it is held, until somebody lets it go on.
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams = SamplingParams()
    n: int = 1
    best_of: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_from: int = 1
    pooling: Pooling | None = None
    salt: bytes = b""
    adapter: str | None = None
    priority: int = 0
    prediction: tuple[int, ...] = ()
    continues_text: bool = False
    emitted: tuple[int, ...] = ()
    by_rounds: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its log-probability, and the likeliest alternatives, best first, as (token, log-probability)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Tokens of one request so far; the draft's accepted and rejected ones, and those of the `prediction`."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    draft_accepted: int = 0
    draft_rejected: int = 0
    prediction_accepted: int = 0
    prediction_rejected: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What one step brought for one answer (`index`) of one request.

    `text` is whole characters only, and nothing that might still become a stop string. The last event of an answer
    carries `finish_reason` (and `stop_reason`, the stop string or token that ended it); the last event of a request
    has `is_last`. `end_token` is the token that ended it, where that is not among the others. With `finish_reason`
    "error", `error` says why. What a request brings as `emitted` comes first, a token an event, in events that are
    `is_replayed`: these tell again what was told before, and no log-probabilities.
    """

    request_id: str
    index: int = 0
    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    embedding: tuple[float, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    end_token: int | None = None
    usage: TokenUsage | None = None
    error: Exception | None = None
    is_last: bool = False
    is_replayed: bool = False
