"""Metrics of what upstreams have worked on, whether or not a client got it: hedges, retries and broken answers too.

`docs/metrics.md` describes each of them; a test compares the two. Labels are routes and backends of the policy file.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.metrics.group import MetricGroup


class ChargeMetrics(MetricGroup):
    """Counted by attempts as they end; `gateway/record/charge_tally.py` adds them up."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "slipstream_upstream_")
        self.tokens = self.counter(
            "tokens",
            "Tokens that upstreams worked on, for whomever; `cached` is part of `prompt`.",
            *("route", "backend", "kind", "source"),
        )
        self.cost = self.counter(
            "cost_usd",
            "What upstreams take for it, in US dollars, as far as its price is known.",
            *("route", "backend"),
        )
        self.unpriced = self.counter(
            "unpriced", "Attempts that used something of which nobody knows what it costs.", *("route", "backend")
        )
        self.unmetered = self.counter(
            "unmetered", "Attempts of which nobody knows what they used.", *("route", "backend")
        )
