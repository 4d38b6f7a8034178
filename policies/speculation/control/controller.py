"""Whether a draft pays for a target, and how far it is to go ahead: by what tokens take with it and without.

                 16 tokens alone        predicted or tried: faster by a tenth
    learning ------------------> alone -----------------------------------------> drafting
                                   ^   ^                                              |
                                   |   +------- it has lost what some steps take -----+
                                   +-- 64 tokens' rest, doubled up to 512 -- or it failed, or was slow

Pushed drafts are tried, since a try costs next to nothing: nothing waits for them. Rounds wait for the draft, the way
and the verdict, so they are predicted; what is not known of them is found out by short rounds, paid from a purse.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.speculation.control.acceptance import MAX_PLACES, PlaceAcceptance
from policies.speculation.control.round_times import RoundTimes

_LEARNED = 16
"""Tokens alone before the first draft."""
_LOOKED_AT = 32
"""Tokens with a pushed draft after which the gain is judged."""
_LEAST_GAIN = 1.05
"""Of a pushed draft, as measured."""
_LEAST_PREDICTED = 1.02
"""Of rounds, before they begin."""
_MOST_LOST = 4.0
"""Of its steps or rounds: what a draft may lose since it last gained, before it is left."""
_FIRST_PAUSE, _LAST_PAUSE = 64, 512
_PROVEN = 128
"""Tokens with a draft after which the next failure is a first one again."""
_PURSE_SHARE = 0.005
"""Of all time, for rounds that only find out."""
_MOST_PURSE = 40.0
"""Tokens alone."""
_PROBE = 2
"""Draft tokens of a round that only finds out."""
_ROUNDS_BEFORE_RELEARNING, _RELEARNED = 150, 4
"""So many tokens are taken alone every so often, because what a token takes alone changes too."""
_TOKENS_A_RELEARNED, _MOST_BEFORE_RELEARNING = 50, 8192
"""Where an answer goes on alone to its end, that is more: it is done the more seldom then."""
_PUSHED_BEFORE_RELEARNING, _RELEARNED_PUSHED = 1536, 12

_CHANGED = 1.5
"""So many times as slow or as fast alone: the target is not what it was, and what is known of drafts is in doubt."""
_KEPT = 128
"""Tokens over which old measurements of a pace fade."""


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
    """Of one target and its draft; answers that run at the same time share it. Reads no clock.

    A target that is pushed to asks `is_on` and tells `note`; one with rounds asks `draft_tokens` and tells `note` of
    tokens alone and `told` of rounds. `load` is how many answers the target writes at once, 1 where nobody knows.
    """

    def __init__(self) -> None:
        self.acceptance = PlaceAcceptance()
        self.times = RoundTimes()
        self._alone = TokenPace()
        self._drafted = TokenPace()
        self._alone_for = _LEARNED
        self._on_for = 0
        self._pause = _FIRST_PAUSE
        self._is_drafting = False
        self._lost_s = 0.0
        self._num_rounds = self._by_rounds = self._alone_since = 0
        self._purse_s = 0.0
        self._unlooked, self._is_broken = 0, False
        self._trusted_s = 0.0
        """A token alone when what is known of drafts was last in doubt."""

    @property
    def is_on(self) -> bool:
        """Whether answers of a target that is pushed to are to be drafted now."""
        return not self._alone_for

    @property
    def gain(self) -> float:
        """How many times as fast tokens come with the draft as alone; 0 where one of both is not known."""
        drafted_s = self._drafted.s_per_token
        return self._alone.s_per_token / drafted_s if drafted_s else 0.0

    def capacity_gain(self, num_drafted: int, load: int = 1) -> float:
        """How many times the tokens that a second of the target's steps brings, with drafts of that length: what more
        callers gain. Below 1 the target does more work for the same tokens.
        """
        alone_s = self.times.alone_s(load)
        tokens = self.acceptance.tokens_a_round(num_drafted)[-1]
        return tokens * alone_s / self.times.step_s(num_drafted, load) if alone_s else 0.0

    def draft_tokens(self, most: int, load: int = 1, *, num_ready: int = 0) -> int:
        """How many tokens the next round is to draft, `most` at most; 0: the next token comes alone.

        `most` is 0 where the target says that it has no room. `num_ready`: what the draft has said already, of which
        nobody knows yet that it is wrong.
        """
        most = min(most, MAX_PLACES - 1)
        if most <= 0 or self._alone_for:
            return 0
        times, probe = self.times, min(_PROBE, most)
        if not times.is_known:
            return probe
        # A draft of so many goes on where they and the target's own token behind them are what it has said.
        tokens = self.acceptance.tokens_a_round(most + 1)
        alone_s = times.alone_s(load)
        best, least_s = 0, alone_s
        for length in range(1, most + 1):
            goes_on = tokens[length + 1] - tokens[length]
            token_s = times.round_s(length, load, goes_on=goes_on) / tokens[length]
            if token_s < least_s:
                best, least_s = length, token_s
        if best and (self._is_drafting or alone_s > _LEAST_PREDICTED * least_s):
            if not self._is_drafting:
                self._is_drafting, self._alone_since = True, 0
            return self._best_behind(num_ready, best, least_s, tokens, load)
        self._is_drafting = False
        return probe if self._purse_s >= times.round_s(probe, load) - tokens[probe] * alone_s else 0

    def _best_behind(self, num_ready: int, best: int, token_s: float, tokens: Sequence[float], load: int) -> int:
        """The length of the next draft, of 1 to `len(tokens) - 2`: what wins most time against tokens of `token_s`, as
        drafts of `best` tokens bring them. What is said already need not be waited for; a miss costs a beginning.
        """
        times = self.times

        def won_s(length: int) -> float:
            goes_on = tokens[length + 1] - tokens[length]
            spent_s = times.wait_s(length, num_ready) + times.verdict_s(length, load)
            return tokens[length] * token_s - spent_s - (1 - goes_on) * times.wait_s(best)

        return max(range(1, len(tokens) - 1), key=won_s)

    def note(self, num_tokens: int, seconds: float, *, was_drafted: bool, load: int = 1) -> None:
        """An answer has come on by so many tokens within so many seconds: alone, or with drafts pushed onto it."""
        if not was_drafted:
            self._alone.add(num_tokens, seconds)
            self.times.add_alone(num_tokens, seconds, load)
            if load == 1:
                self._unlooked += num_tokens
                self._doubt_what_has_changed()
            self._alone_for = max(0, self._alone_for - num_tokens)
            self._alone_since += num_tokens
            self._save(seconds)
            return
        self._drafted.add(num_tokens, seconds)
        if not self.is_on:
            return
        self._on_for += num_tokens
        if self._has_lost(num_tokens, seconds, load) or (self._on_for >= _LOOKED_AT and self.gain < _LEAST_GAIN):
            self._leave()
        elif self._on_for >= _PUSHED_BEFORE_RELEARNING:
            self._on_for, self._alone_for = _LOOKED_AT, _RELEARNED_PUSHED
        elif self._on_for >= _PROVEN:
            self._pause = _FIRST_PAUSE

    def told(
        self,
        num_drafted: int,
        num_accepted: int,
        *,
        draft_s: float,
        verify_s: float,
        step_s: float | None = None,
        load: int = 1,
    ) -> None:
        """A round has brought `num_accepted + 1` tokens. `draft_s`: until the draft was there; `verify_s`: from then to
        the verdict; `step_s`: the target's step, where it is told.
        """
        num_tokens, seconds = num_accepted + 1, draft_s + verify_s
        self.acceptance.add(num_accepted, num_drafted)
        is_first_try = not self.times.is_known
        self.times.add_round(num_drafted, verify_s, step_s=step_s, load=load)
        self._drafted.add(num_tokens, seconds)
        self._save(seconds)
        if is_first_try:
            return
        if not self._is_drafting:
            self._purse_s -= max(0.0, seconds - num_tokens * self.times.alone_s(load))
            return
        self._on_for += num_tokens
        self._num_rounds += 1
        self._by_rounds += num_tokens
        if self._has_lost(num_tokens, seconds, load):
            self._leave()
        elif self._num_rounds >= _ROUNDS_BEFORE_RELEARNING and self._by_rounds >= min(
            _TOKENS_A_RELEARNED * self._alone_since, _MOST_BEFORE_RELEARNING
        ):
            self._alone_for = _RELEARNED
            self._num_rounds = self._by_rounds = self._alone_since = 0
        elif self._on_for >= _PROVEN:
            self._pause = _FIRST_PAUSE

    def scored(self, num_accepted: int, num_drafted: int) -> None:
        """Off the path of calls: of a draft of so many tokens for an answer that is over, so many were right."""
        self.acceptance.add(num_accepted, num_drafted)

    def fail(self) -> None:
        """The draft does not answer: answers go on alone for a while, longer each time."""
        self._leave()
        self._is_broken = True

    def _leave(self) -> None:
        """The draft does not pay: the same."""
        self._is_broken = False
        self._alone_for, self._on_for = self._pause, 0
        self._pause = min(2 * self._pause, _LAST_PAUSE)
        self._drafted.clear()
        self._is_drafting, self._lost_s = False, 0.0

    def _has_lost(self, num_tokens: int, seconds: float, load: int) -> bool:
        """Whether what drafts have lost since they last gained is too much; to be asked once for each step or round."""
        self._lost_s = max(0.0, self._lost_s + seconds - num_tokens * self.times.alone_s(load))
        return self._lost_s > _MOST_LOST * seconds

    def _doubt_what_has_changed(self) -> None:
        """A target that is slower or faster by itself is another machine, load or model: look anew, and soon."""
        trusted_s, alone_s = self._trusted_s, self.times.alone_s()
        if self._unlooked < _LEARNED or (trusted_s and trusted_s / _CHANGED <= alone_s <= trusted_s * _CHANGED):
            return
        self._trusted_s, self._unlooked = alone_s, 0
        if trusted_s:
            if not self._is_broken:
                self._alone_for, self._pause = min(self._alone_for, _RELEARNED), _FIRST_PAUSE
            self.acceptance.doubt()
            self.times.doubt()

    def _save(self, seconds: float) -> None:
        """A share of all time goes to what only finds out."""
        self._purse_s = min(self._purse_s + _PURSE_SHARE * seconds, _MOST_PURSE * self.times.alone_s())
