"""One of a backend's keys: what it has left for each model, and until when it is left out."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Literal

import msgspec

from backends.protocol import Headers
from backends.quotas.allowance import Allowance, QuotaLeft, Taken
from backends.quotas.ration import Ration
from backends.quotas.told import QuotaKind

KeyRefusal = Literal["rejected", "exhausted"]
"""Why a key was left out: the upstream does not take it, or it has nothing left."""

MAX_MODELS = 64
"""Models come from clients: of more, those that were not asked for the longest time are forgotten."""
_REJECTED_S = 60.0
_MAX_REJECTED_S = 600.0
_EXHAUSTED_S = 1.0
MAX_EXHAUSTED_S = 300.0
"""An upstream that says "in a day" may be wrong, so a key is tried again after so long."""


class KeyStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A key at one moment: what is left for that of its models which has least, by kind."""

    name: str
    left: Mapping[QuotaKind, QuotaLeft]
    is_out: bool
    """It is left out, for all models or some."""


class UpstreamKey:
    """Known by its place in the list, from 1 on. Its text is nowhere but in `fields`, which present it."""

    __slots__ = (
        *(
            "_allowances",
            "_exhaustions",
            "_max_models",
            "_rejections",
            "counts",
            "fields",
            "name",
            "ration",
            "rejected_until",
        ),
        "weight",
    )

    def __init__(
        self,
        name: str,
        fields: Headers,
        ration: Ration | None = None,
        weight: float = 1.0,
        *,
        max_models: int = MAX_MODELS,
    ) -> None:
        """No `fields` for a backend that wants no key. `ration`: what it alone may ask; `weight`: how much of the
        prompts that begin alike it takes, beside the other keys. `max_models`: of which it is known what is left.
        """
        self.name = name
        self.fields = tuple(fields)
        self.ration = ration
        self.weight = weight
        self._max_models = max_models
        self.rejected_until = 0.0
        self.counts: Counter[KeyRefusal | Literal["sent"]] = Counter()
        """Since they were last taken."""
        self._allowances: OrderedDict[str, Allowance] = OrderedDict()
        self._exhaustions = 0
        self._rejections = 0

    def take(self, model: str, prompt: int) -> Taken:
        """A call for that model goes out with it, whose prompt has so many tokens."""
        self.counts["sent"] += 1
        return self.allowance(model).take(prompt)

    def wait_s(self, model: str, tokens: float, now: float) -> float:
        """Seconds until it may be asked for that model and so many tokens; 0 if now."""
        out_s = max(0.0, self._out_until(model) - now)
        return out_s if self.ration is None else max(out_s, self.ration.wait_s(tokens, now))

    def room(self, model: str, prompt: int, now: float) -> tuple[bool, float]:
        """Whether a prompt fits into what upstreams told as left, and the least share that is left of any quota."""
        fits, share = self.allowance(model).room(prompt, now)
        for quota in self.ration.left(now).values() if self.ration is not None else ():
            share = min(share, quota.left / quota.limit)
        return fits, share

    def allowance(self, model: str) -> Allowance:
        """What it has left for that model."""
        known = self._allowances.get(model)
        if known is None:
            known = self._allowances[model] = Allowance()
            if len(self._allowances) > self._max_models:
                self._allowances.popitem(last=False)
        else:
            self._allowances.move_to_end(model)
        return known

    def work(self) -> None:
        """It was taken."""
        self._rejections = self._exhaustions = 0
        self.rejected_until = 0.0

    def reject(self, now: float) -> None:
        """The upstream refuses it, whatever is asked: left out for a minute, then for longer."""
        self.counts["rejected"] += 1
        self._rejections += 1
        self.rejected_until = now + min(_REJECTED_S * 2 ** min(self._rejections - 1, 10), _MAX_REJECTED_S)

    def forbid(self, model: str, now: float) -> None:
        """The upstream refuses it for that model."""
        self.counts["rejected"] += 1
        self.allowance(model).out_until = now + _REJECTED_S

    def exhaust(self, model: str, wait_s: float | None, now: float) -> None:
        """It has nothing left for that model, for as long as the upstream says."""
        self.counts["exhausted"] += 1
        self._exhaustions += 1
        if wait_s is None:
            wait_s = _EXHAUSTED_S * 2 ** min(self._exhaustions - 1, 10)
        allowance = self.allowance(model)
        allowance.out_until = max(allowance.out_until, now + min(wait_s, MAX_EXHAUSTED_S))

    def take_counts(self) -> Mapping[KeyRefusal | Literal["sent"], int]:
        """Calls that went out with it and refusals since the last time, for metrics."""
        counts, self.counts = self.counts, Counter()
        return counts

    def statistics(self, now: float) -> KeyStatistics:
        """A snapshot."""
        least: dict[QuotaKind, QuotaLeft] = {}
        for allowance in self._allowances.values():
            for kind, quota in allowance.left(now).items():
                known = least.get(kind)
                if known is None or quota.left * known.limit < known.left * quota.limit:
                    least[kind] = quota
        is_out = now < max((each.out_until for each in self._allowances.values()), default=0.0)
        return KeyStatistics(name=self.name, left=least, is_out=is_out or now < self.rejected_until)

    def _out_until(self, model: str) -> float:
        known = self._allowances.get(model)
        return self.rejected_until if known is None else max(self.rejected_until, known.out_until)
