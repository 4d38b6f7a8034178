"""The ranges of sampling parameters, checked when a request comes in."""

from __future__ import annotations

from typing import NoReturn

from backends.engine.errors import RequestRefused
from backends.engine.request import Request, SamplingParams

MAX_LOGPROBS = 20
"""OpenAI's and vLLM's limit of `top_logprobs`."""
_SEED_BITS = 64
_RESUME = "slipstream_resume"
"""How clients of the served model know it."""


def check_params(params: SamplingParams, *, vocab_size: int, max_context: int, num_prompt: int) -> None:
    """Refuses what cannot be sampled with, or does not fit behind a prompt of `num_prompt` tokens.

    Raises: RequestRefused, naming the parameter.
    """
    _check_numbers(params)
    _check_tokens(params, vocab_size)
    _check_lengths(params, max_context, num_prompt)
    if any(not stop for stop in params.stop):
        _refuse("stop", "", "strings that are not empty")
    if params.logprobs is not None and not 0 <= params.logprobs <= MAX_LOGPROBS:
        _refuse("logprobs", params.logprobs, f"0..{MAX_LOGPROBS}")
    if params.seed is not None and not -(1 << _SEED_BITS - 1) <= params.seed < 1 << _SEED_BITS:
        _refuse("seed", params.seed, f"an integer of at most {_SEED_BITS} bits")


def check_emitted(request: Request, *, vocab_size: int, max_context: int) -> None:
    """Refuses an answer that is to go on behind `emitted` and cannot. Raises: RequestRefused."""
    emitted = request.emitted
    if not emitted:
        return
    if min(emitted) < 0 or max(emitted) >= vocab_size:
        raise RequestRefused(f"the answer so far holds a token outside of 0..{vocab_size - 1}", param=_RESUME)
    if (request.best_of or request.n) != 1 or request.pooling is not None:
        raise RequestRefused("only a single answer can go on where it broke off", param=_RESUME)
    room = max_context - len(request.prompt)
    most = room if request.params.max_tokens is None else min(request.params.max_tokens, room)
    if len(emitted) >= most:
        raise RequestRefused(f"the answer so far has {len(emitted)} tokens of {most}: nothing is left", param=_RESUME)


def _check_numbers(params: SamplingParams) -> None:
    ranges = {
        "temperature": (0.0, 100.0),
        "min_p": (0.0, 1.0),
        "presence_penalty": (-2.0, 2.0),
        "frequency_penalty": (-2.0, 2.0),
        # Further out logits are no numbers any more.
        "repetition_penalty": (0.01, 100.0),
    }
    for name, (lowest, highest) in ranges.items():
        value = getattr(params, name)
        # Written so that NaN is refused too.
        if not lowest <= value <= highest:
            _refuse(name, value, f"{lowest:g}..{highest:g}")
    if not 0.0 < params.top_p <= 1.0:
        _refuse("top_p", params.top_p, "above 0 and at most 1")
    if params.top_k < 0:
        _refuse("top_k", params.top_k, "0 (off) or more")


def _check_tokens(params: SamplingParams, vocab_size: int) -> None:
    for name, tokens in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        for token in tokens:
            if not 0 <= token < vocab_size:
                _refuse(name, token, f"token ids, 0..{vocab_size - 1}")
    for token, bias in params.logit_bias.items():
        if not -100.0 <= bias <= 100.0:
            _refuse("logit_bias", f"{bias} for token {token}", "-100..100")


def _check_lengths(params: SamplingParams, max_context: int, num_prompt: int) -> None:
    if params.max_tokens is not None and params.max_tokens < 0:
        _refuse("max_tokens", params.max_tokens, "0 or more")
    if not 0 <= params.min_tokens <= (max_context if params.max_tokens is None else params.max_tokens):
        _refuse("min_tokens", params.min_tokens, "0..max_tokens")
    # Room for one token at least, unless none is wanted.
    num_wanted = 1 if params.max_tokens is None else params.max_tokens
    if num_prompt + num_wanted > max_context:
        raise RequestRefused(
            f"the model's context is {max_context} tokens; {num_prompt} in the prompt and {num_wanted} to be generated"
            " do not fit: shorten the prompt or lower max_tokens",
            param="max_tokens" if num_prompt < max_context else "prompt",
            code="context_length_exceeded",
        )


def _refuse(param: str, value: object, allowed: str) -> NoReturn:
    raise RequestRefused(f"{param} is {value!r}, allowed: {allowed}", param=param)
