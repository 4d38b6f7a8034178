"""Whether a draft pays for a target: by the seconds that a token of its answers takes with it and without.

learning --16 tokens alone--> on --no gain over 32 tokens, or a failure--> off for 64, doubled up to 1,024 --> on
"""

from __future__ import annotations

_LEARNED = 16
"""Tokens alone before the first draft."""
_LOOKED_AT = 32
"""Tokens with a draft after which the gain is judged."""
_LEAST_GAIN = 1.05
_FIRST_PAUSE, _LAST_PAUSE = 64, 1024
_ON_BEFORE_RELEARNING = 1536
_RELEARNED = 12
"""Tokens alone every so often, because what a token takes alone changes too."""
_KEPT = 128
"""Tokens over which old measurements fade."""


class TokenPace:
    """Seconds a token, of the latest tokens."""

    __slots__ = ("_seconds", "_tokens")

    def __init__(self) -> None:
        self._seconds = self._tokens = 0.0

    def add(self, num_tokens: int, seconds: float) -> None:
        """Notes tokens that have come within so many seconds."""
        kept = max(0.0, 1 - num_tokens / _KEPT)
        self._seconds = kept * self._seconds + seconds
        self._tokens = kept * self._tokens + num_tokens

    def clear(self) -> None:
        """Forgets all."""
        self._seconds = self._tokens = 0.0

    @property
    def s_per_token(self) -> float:
        """0 while nothing was measured."""
        return self._seconds / self._tokens if self._tokens else 0.0


class Controller:
    """Of one target and its draft; answers that run at the same time share it. Counts tokens and reads no clock."""

    def __init__(self) -> None:
        self._alone = TokenPace()
        self._drafted = TokenPace()
        self._alone_for = _LEARNED
        self._on_for = 0
        self._pause = _FIRST_PAUSE

    @property
    def is_on(self) -> bool:
        """Whether answers are to be drafted now."""
        return not self._alone_for

    @property
    def gain(self) -> float:
        """How many times as fast tokens come with the draft as alone; 0 where one of both is not known."""
        drafted_s = self._drafted.s_per_token
        return self._alone.s_per_token / drafted_s if drafted_s else 0.0

    def note(self, num_tokens: int, seconds: float, *, was_drafted: bool) -> None:
        """An answer has come on by so many tokens within so many seconds."""
        if not was_drafted:
            self._alone.add(num_tokens, seconds)
            self._alone_for = max(0, self._alone_for - num_tokens)
            return
        self._drafted.add(num_tokens, seconds)
        if not self.is_on:
            return
        self._on_for += num_tokens
        if self._on_for >= _LOOKED_AT and self.gain < _LEAST_GAIN:
            self.fail()
        elif self._on_for >= _ON_BEFORE_RELEARNING:
            self._on_for, self._alone_for = _LOOKED_AT, _RELEARNED
        elif self._on_for >= 4 * _LOOKED_AT:
            self._pause = _FIRST_PAUSE

    def fail(self) -> None:
        """The draft does not pay, or does not answer: answers go on alone for a while, longer each time."""
        self._alone_for, self._on_for = self._pause, 0
        self._pause = min(2 * self._pause, _LAST_PAUSE)
        self._drafted.clear()
