"""From a backend's settings to its keys, which its own module knows how to present."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backends.clock import Clock
from backends.protocol import Headers
from backends.quotas.ration import Ration
from backends.quotas.settings import BURST_S, ApiKeyConfig, QuotaConfig
from backends.quotas.upstream_key import MAX_MODELS, UpstreamKey
from backends.quotas.upstream_keys import UpstreamKeys

_MAX_MODELS_OF_ALL = 16_384
"""Of all keys together: each takes less than a kilobyte."""


def build_keys(
    backend: str,
    given: Sequence[ApiKeyConfig],
    quota: QuotaConfig | None,
    present: Callable[[str], Headers],
    clock: Clock,
    *,
    has_choice: bool,
    shares_objects: bool,
) -> UpstreamKeys:
    """`present`: the header fields that present a key. A backend without keys asks with nothing."""
    now = clock.now()
    burst_s = BURST_S if quota is None else quota.burst

    def ration(limits: QuotaConfig | ApiKeyConfig | None) -> Ration | None:
        if limits is None or (limits.rpm is None and limits.tpm is None):
            return None
        return Ration(limits.rpm, limits.tpm, burst_s, now)

    max_models = min(MAX_MODELS, _MAX_MODELS_OF_ALL // max(1, len(given)))
    keys = [
        UpstreamKey(str(number), present(each.key.get_secret_value()), ration(each), weight, max_models=max_models)
        for number, (each, weight) in enumerate(zip(given, _weights(given), strict=True), 1)
    ]
    return UpstreamKeys(
        backend,
        keys or [UpstreamKey("1", [])],
        clock,
        ration=ration(quota),
        shares_objects=shares_objects,
        has_choice=has_choice,
    )


def _weights(given: Sequence[ApiKeyConfig]) -> list[float]:
    """By what each may be asked, where that is said of all in the same words."""
    for rates in ([each.tpm for each in given], [each.rpm for each in given]):
        declared = [float(rate) for rate in rates if rate is not None]
        if len(declared) == len(given):
            return declared
    return [1.0] * len(given)
