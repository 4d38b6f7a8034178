"""Answers held to a form: JSON, a JSON schema, a regular expression, a Lark grammar. Masks by the llguidance library.

A grammar travels in `SamplingParams.grammar` as the string that the library takes.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from backends.engine.choosing.deep_stack import on_deep_stack
from backends.engine.choosing.grammar_trial import ends_in
from backends.engine.errors import RequestRefused
from backends.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_WHITE_SPACE = {"whitespace_pattern": r"( |\n[ \t]{0,32})?"}
"""Between the parts of JSON, as people write it. Small models would go on for ever where any number of spaces may."""
_MOST_CHARS = 2**18
"""Of a grammar as it is handed over; OpenAI takes 120,000. Compiling that much takes two or three seconds where
it is dearest, and what is made of it 6 MiB.
"""
_STACK_BYTES = 2**28
"""The library follows references by recursion without a bound, and a stack that overflows ends the process: 1,000
definitions, each with a property of the next one's form, were enough for 8 MiB. Of 37 kinds of chains twice as long as
may be none took more than 300 MiB of memory in all. What is not used of a stack is address space only.
"""
_LIMIT_S = 10.0
"""Of compiling. Twenty patterns that are to hold together (`allOf`) take the library minutes, each one more twice that.
"""
_PATTERNS = ('"pattern', '"format"')
_TRIED_FROM = 2
"""With so many patterns a grammar is compiled first in a process that can be ended: nothing else ends that work. It
takes a fifth of a second, once for each grammar that is kept."""
_MOST_TRIED = 2
"""At once, so that they leave processors and threads to others."""
_MOST_LATE = 2
"""Other grammars that go on being compiled behind that limit. While there are so many, no further one is begun."""
_NUM_KEPT = 64
"""Compiled grammars that are kept; compiling takes 1 ms for plain JSON and up to seconds for large schemas."""


class GrammarFactory:
    """Compiles grammars for one tokenizer, each once while it is in use. Any thread may call it."""

    def __init__(self, tokenizer: Tokenizer, *, limit_s: float = _LIMIT_S) -> None:
        """`limit_s`: of compiling one grammar, in seconds of the clock."""
        self._tokenizer = tokenizer
        self._limit_s = limit_s
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._late: set[Future[LLMatcher]] = set()
        self._num_tried = 0
        self._lock = threading.Lock()

    def json_object(self) -> str:
        """Any JSON object."""
        return self.json_schema({"type": "object"})

    def json_schema(self, schema: Mapping[str, Any] | bool) -> str:
        """The values of a JSON schema. Raises RequestRefused where it cannot be compiled."""
        if isinstance(schema, Mapping):
            # What the library reads; a schema may bring its own.
            schema = {"x-guidance": _WHITE_SPACE, **schema}
        return self.check(json.dumps({"grammars": [{"json_schema": schema}]}))

    def regex(self, pattern: str) -> str:
        """The texts that a regular expression matches as a whole. Raises RequestRefused."""
        from llguidance import LLMatcher

        return self.check(LLMatcher.grammar_from_regex(pattern))

    def check(self, grammar: str) -> str:
        """The grammar itself, compiled for later use. Raises RequestRefused, naming response_format."""
        self._compile(grammar)
        return grammar

    def start(self, grammar: str) -> Grammar:
        """The grammar at its beginning. Raises RequestRefused where it cannot be compiled."""
        matcher = self._compile(grammar)
        with self._lock:
            return Grammar(matcher.deep_copy(), self._tokenizer.vocab_size)

    def _compile(self, grammar: str) -> LLMatcher:
        with self._lock:
            matcher = self._compiled.get(grammar)
            if matcher is not None:
                self._compiled.move_to_end(grammar)
                return matcher
        # Without the lock: the engine's thread starts known grammars meanwhile.
        matcher = self._new_matcher(grammar)
        with self._lock:
            self._compiled[grammar] = matcher
            if len(self._compiled) > _NUM_KEPT:
                self._compiled.popitem(last=False)
        return matcher

    def _new_matcher(self, grammar: str) -> LLMatcher:
        if len(grammar) > _MOST_CHARS:
            raise RequestRefused(
                f"response_format has {len(grammar)} characters; at most {_MOST_CHARS} are taken",
                param="response_format",
                code="invalid_grammar",
            )
        matcher = self._built_in_time(grammar)
        if matcher.is_error():
            raise RequestRefused(
                f"response_format cannot be compiled: {_problem(matcher)}",
                param="response_format",
                code="invalid_grammar",
            )
        return matcher

    def _built_in_time(self, grammar: str) -> LLMatcher:
        with self._lock:
            self._late = {build for build in self._late if not build.done()}
            num_late = len(self._late)
        if num_late >= _MOST_LATE:
            raise _busy(num_late)
        if sum(map(grammar.count, _PATTERNS)) >= _TRIED_FROM:
            self._try(grammar)
        build = on_deep_stack(partial(self._build, grammar), _STACK_BYTES)
        try:
            return build.result(self._limit_s)
        except TimeoutError:
            # Nothing ends the library's work but itself.
            with self._lock:
                self._late.add(build)
            raise _endless(self._limit_s) from None

    def _try(self, grammar: str) -> None:
        """Raises RequestRefused for a grammar that is not compiled in time, and leaves nothing behind that goes on."""
        with self._lock:
            if self._num_tried >= _MOST_TRIED:
                raise _busy(self._num_tried)
            self._num_tried += 1
        try:
            if not ends_in(grammar, self._limit_s):
                raise _endless(self._limit_s)
        finally:
            with self._lock:
                self._num_tried -= 1

    def _build(self, grammar: str) -> LLMatcher:
        from llguidance import LLMatcher, LLTokenizer

        if self._vocabulary is None:
            end = list(self._tokenizer.eos_token_ids)
            self._vocabulary = LLTokenizer(self._tokenizer.to_json(), eos_token=end or None)
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0)
        if matcher.is_error():
            return matcher
        # Some problems show at the first step only.
        probe = matcher.deep_copy()
        probe.compute_bitmask()
        return probe if probe.is_error() else matcher


class Grammar:
    """How far one answer has come in its grammar."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        """`matcher` at its beginning; `vocab_size` is that of the tokenizer, which the model's may exceed."""
        self._matcher = matcher
        self._vocab_size = vocab_size
        self.num_consumed = 0

    def advance(self, tokens: SequenceOf[int]) -> None:
        """Takes tokens of the answer. Behind the grammar's end only an end may come."""
        for token in tokens:
            self._take(token)
        self.num_consumed += len(tokens)

    def masks(self, drafts: SequenceOf[int]) -> list[bytes]:
        """What may come next, and what behind each draft, up to the first that is refused.

        One bit a token, the first one the lowest; tokens beyond the mask's end are refused. Raises RequestRefused
        where the library's limits are reached: an answer that ends there would look whole.
        """
        masks = [self._mask()]
        num_taken = 0
        for token in drafts:
            if not self._take(token):
                self._check()
                break
            num_taken += 1
            masks.append(self._mask())
        if num_taken:
            self._matcher.rollback(num_taken)
        return masks

    def _mask(self) -> bytes:
        mask = self._matcher.compute_bitmask()
        self._check()
        return mask

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestRefused(
                f"response_format is too much for this answer: {_problem(self._matcher)}",
                param="response_format",
                code="invalid_grammar",
            )

    def _take(self, token: int) -> bool:
        # A token that the library does not know would leave it in a state of error.
        return token < self._vocab_size and self._matcher.try_consume_tokens([token]) == 1


def _busy(num_others: int) -> RequestRefused:
    return RequestRefused(
        f"response_format is not compiled while {num_others} others take as long as they do; try again later",
        param="response_format",
    )


def _endless(limit_s: float) -> RequestRefused:
    return RequestRefused(
        f"response_format takes more than {limit_s:g} s to compile: make it simpler, with fewer patterns that are to "
        "hold together",
        param="response_format",
        code="invalid_grammar",
    )


def _problem(matcher: LLMatcher) -> str:
    """What is wrong, in a line: a regular expression's trouble stands in the last one, after a picture of it."""
    lines = matcher.get_error().partition("<state>")[0].strip().splitlines() or ["unknown"]
    return " ".join(line.strip() for line in (lines if lines[0].endswith("error:") else lines[:1]))
