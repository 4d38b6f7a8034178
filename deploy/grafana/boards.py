"""What the five Grafana boards show: panels and their queries, as data. `generate.py` makes Grafana's JSON of it.

`python deploy/grafana/generate.py` after a change; a test compares, and runs every query against a real Prometheus.
"""

from __future__ import annotations

from dataclasses import dataclass

WINDOW = "$__rate_interval"
_ROUTE = 'route=~"$route"'
_BACKEND = 'backend=~"$backend"'


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel, and what its lines are called."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart: its question answered by one or several queries, in Grafana's name of a unit."""

    title: str
    unit: str
    queries: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """A board, for one kind of question."""

    name: str
    title: str
    variables: tuple[tuple[str, str], ...]
    """Names of variables, and the query of their values."""
    panels: tuple[Panel, ...]


def rate(metric: str, by: str, *selected: str) -> str:
    """What a counter grows by in a second, summed by these labels."""
    return f"sum by ({by}) (rate({metric}{{{','.join(selected)}}}[{WINDOW}]))"


def share(part: str, whole: str) -> str:
    """A part of a whole. What has never happened has no series: it is 0, where there is a whole."""
    return f"({part} or 0 * {whole}) / ({whole} > 0)"


def share_of(metric: str, by: str, picked: str, *selected: str) -> str:
    """The share that the picked series of a counter have in all of them."""
    return share(rate(metric, by, picked, *selected), rate(metric, by, *selected))


def quantiles(metric: str, legend: str, *selected: str) -> tuple[Query, ...]:
    """The median, the 95th and the 99th percentile of a histogram."""
    buckets = rate(f"{metric}_bucket", f"le, {legend}", *selected)
    return tuple(
        Query(f"histogram_quantile({quantile}, {buckets})", f"{{{{{legend}}}}} {name}")
        for quantile, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
    )


def one(title: str, unit: str, expression: str, legend: str) -> Panel:
    """A panel of one query."""
    return Panel(title, unit, (Query(expression, legend),))


_ROUTES = ("route", "label_values(slipstream_requests_total, route)")
_BACKENDS = ("backend", "label_values(slipstream_backend_in_flight, backend)")
_UPSTREAM = "slipstream_upstream_cost_usd_total"
_TOKENS = "slipstream_tokens_total"
_LOOKUPS = "slipstream_cache_lookups_total"
_SEMANTIC = "slipstream_semantic"
_ENGINE = "model_name, engine"

MONEY = Board(
    "money",
    "Slipstream: money",
    (_ROUTES,),
    (
        one("Spent per hour", "currencyUSD", f"3600 * {rate(_UPSTREAM, 'route', _ROUTE)}", "{{route}}"),
        one("Spent per hour, by backend", "currencyUSD", f"3600 * {rate(_UPSTREAM, 'backend', _ROUTE)}", "{{backend}}"),
        one(
            "Saved per hour, by cause",
            "currencyUSD",
            f"3600 * {rate('slipstream_saved_usd_total', 'cause', _ROUTE)}",
            "{{cause}}",
        ),
        one(
            "Paid beyond the list price per hour, by cause",
            "currencyUSD",
            f"3600 * ({rate('slipstream_overpaid_usd_total', 'cause', _ROUTE)}"
            f" or 0 * {rate('slipstream_saved_usd_total', 'cause', _ROUTE)})",
            "{{cause}}",
        ),
        one(
            "Attempts without a known price",
            "reqps",
            f"{rate('slipstream_upstream_unpriced_total', 'route', _ROUTE)} or 0 * {rate(_UPSTREAM, 'route', _ROUTE)}",
            "{{route}}",
        ),
        one("Tokens by kind", "short", rate(_TOKENS, "kind", _ROUTE), "{{kind}}"),
        one("Saved tokens by kind", "short", rate("slipstream_saved_tokens_total", "kind", _ROUTE), "{{kind}}"),
        one(
            "Work that answered nobody, as a share",
            "percentunit",
            f'clamp_min(1 - sum(rate({_TOKENS}{{kind!="cached"}}[{WINDOW}]))'
            f' / sum(rate(slipstream_upstream_tokens_total{{kind!="cached"}}[{WINDOW}])), 0)',
            "share",
        ),
        one(
            "Budgets of all calls: used",
            "percentunit",
            "max by (rule) (slipstream_limit_budget_used_usd) / (max by (rule) (slipstream_limit_budget_usd) > 0)",
            "{{rule}}",
        ),
        Panel(
            "Budgets: warnings and refusals",
            "short",
            (
                Query(f"sum by (rule) (increase(slipstream_limit_warnings_total[{WINDOW}]))", "{{rule}} warned"),
                Query(
                    f'sum by (rule) (increase(slipstream_limit_refused_total{{reached="usd"}}[{WINDOW}]))',
                    "{{rule}} refused",
                ),
            ),
        ),
        one("Ledger: rows stored", "reqps", f"sum(rate(slipstream_ledger_rows_total[{WINDOW}]))", "rows"),
        one("Ledger: age of what waits", "s", "max(slipstream_ledger_lag_seconds)", "lag"),
        one("Ledger: drift from the metrics", "currencyUSD", "sum(slipstream_ledger_drift_usd)", "drift"),
    ),
)

CACHES = Board(
    "caches",
    "Slipstream: caches",
    (_ROUTES,),
    (
        one(
            "Answered by a cache, or with another call",
            "percentunit",
            share_of(_LOOKUPS, "route", 'outcome=~"hit|semantic|joined"', _ROUTE),
            "{{route}}",
        ),
        one("Look-ups by outcome", "reqps", rate(_LOOKUPS, "layer, outcome", _ROUTE), "{{layer}} {{outcome}}"),
        one(
            "Semantic hits",
            "percentunit",
            share_of(f"{_SEMANTIC}_lookups_total", "route", 'result="hit"', _ROUTE),
            "{{route}}",
        ),
        Panel(
            "Wrong answers per look-up",
            "percentunit",
            (
                Query(f"max by (route) ({_SEMANTIC}_wrong_hit_rate{{{_ROUTE}}})", "{{route}} likely"),
                Query(f"max by (route) ({_SEMANTIC}_wrong_hit_rate_upper{{{_ROUTE}}})", "{{route}} at most"),
                Query(f"max by (route) ({_SEMANTIC}_wrong_hit_rate_bound{{{_ROUTE}}})", "{{route}} bound"),
            ),
        ),
        Panel("Semantic look-up, by stage", "s", quantiles(f"{_SEMANTIC}_stage_seconds", "stage", _ROUTE)),
        one(
            "Provider's cache, as a share of prompt tokens",
            "percentunit",
            share(rate(_TOKENS, "route", 'kind="cached"', _ROUTE), rate(_TOKENS, "route", 'kind="prompt"', _ROUTE)),
            "{{route}}",
        ),
        Panel(
            "Held in memory",
            "bytes",
            (Query("sum(slipstream_cache_bytes)", "exact"), Query(f"sum({_SEMANTIC}_bytes)", "semantic")),
        ),
        Panel(
            "Failures of the stores since the start",
            "short",
            (
                Query("sum(slipstream_cache_store_errors)", "exact"),
                Query(f"sum({_SEMANTIC}_store_errors)", "semantic"),
            ),
        ),
    ),
)

_SLO = "slipstream_slo_requests_total"
SERVICE = Board(
    "service",
    "Slipstream: service",
    (_ROUTES,),
    (
        one("Requests", "reqps", rate("slipstream_requests_total", "route", _ROUTE), "{{route}}"),
        one(
            "Failed",
            "percentunit",
            share_of("slipstream_requests_total", "route", 'status=~"5.."', _ROUTE),
            "{{route}}",
        ),
        one(
            "Refused or broken off here, by code", "reqps", rate("slipstream_errors_total", "code", _ROUTE), "{{code}}"
        ),
        one("In time", "percentunit", share_of(_SLO, "route", 'outcome="met"', _ROUTE), "{{route}}"),
        one("Not in time, by why", "reqps", rate(_SLO, "outcome", 'outcome!="met"', _ROUTE), "{{outcome}}"),
        Panel("First token", "s", quantiles("slipstream_first_token_seconds", "route", _ROUTE)),
        Panel("Whole answer", "s", quantiles("slipstream_request_seconds", "route", _ROUTE)),
        Panel("The gateway's own part", "s", quantiles("slipstream_overhead_seconds", "route", _ROUTE)),
        Panel("Waits in front of backends", "s", quantiles("slipstream_admission_wait_seconds", "route", _ROUTE)),
        one("Calls that wait", "short", f"sum by (route) (slipstream_admission_waiting{{{_ROUTE}}})", "{{route}}"),
        one(
            "Turned away",
            "reqps",
            rate("slipstream_admission_shed_total", "route, reason", _ROUTE),
            "{{route}} {{reason}}",
        ),
        one("Streams by their end", "reqps", rate("slipstream_stream_end_total", "how", _ROUTE), "{{how}}"),
        one("Memory", "bytes", "process_resident_memory_bytes", "{{instance}}"),
        one(
            "Policy files taken over and refused",
            "short",
            f"sum by (outcome) (increase(slipstream_policy_reloads_total[{WINDOW}]))",
            "{{outcome}}",
        ),
    ),
)

_MATCHED = "slipstream_routing_prompt_tokens_total"
BACKENDS = Board(
    "backends",
    "Slipstream: backends",
    (_ROUTES, _BACKENDS),
    (
        one(
            "Calls in flight", "short", f"sum by (backend) (slipstream_backend_in_flight{{{_BACKEND}}})", "{{backend}}"
        ),
        one(
            "Out of rotation",
            "short",
            f"max by (route, backend) (slipstream_breaker_open{{{_BACKEND}}})"
            f" or 0 * sum by (route, backend) (slipstream_upstream_attempts_total{{{_BACKEND}}})",
            "{{route}} {{backend}}",
        ),
        one("Found working by probes", "short", f"min by (backend) (slipstream_probe_up{{{_BACKEND}}})", "{{backend}}"),
        one(
            "Attempts",
            "reqps",
            rate("slipstream_upstream_attempts_total", "route, backend", _ROUTE, _BACKEND),
            "{{route}} {{backend}}",
        ),
        Panel(
            "Beside the first attempt",
            "reqps",
            tuple(
                Query(
                    f"{rate(f'slipstream_{name}_total', 'route', _ROUTE)}"
                    f" or 0 * {rate('slipstream_upstream_attempts_total', 'route', _ROUTE)}",
                    f"{{{{route}}}} {name}",
                )
                for name in ("retries", "hedges", "ejections", "fallbacks")
            ),
        ),
        one(
            "Hedges that answered, of attempts",
            "percentunit",
            share(
                rate("slipstream_hedges_won_total", "route", _ROUTE),
                rate("slipstream_upstream_attempts_total", "route", _ROUTE),
            ),
            "{{route}}",
        ),
        one(
            "First token, observed / predicted",
            "short",
            "max by (replica) (slipstream_routing_first_token_residual)",
            "{{replica}}",
        ),
        one(
            "Prompts sent to where they are cached",
            "percentunit",
            share(rate(_MATCHED, "replica", 'kind="matched"'), rate(_MATCHED, "replica", 'kind="all"')),
            "{{replica}}",
        ),
        Panel(
            "Backends: there are, and are needed",
            "short",
            (
                Query(f"max by (route) (slipstream_autoscale_replicas{{{_ROUTE}}})", "{{route}} there"),
                Query(f"max by (route) (slipstream_autoscale_desired_replicas{{{_ROUTE}}})", "{{route}} needed"),
            ),
        ),
        one(
            "Inputs of an upstream call",
            "short",
            share(
                rate("slipstream_batching_inputs_sum", "route", _ROUTE),
                rate("slipstream_batching_inputs_count", "route", _ROUTE),
            ),
            "{{route}}",
        ),
        one("KV events followed", "short", f"min by (backend) (slipstream_kv_live{{{_BACKEND}}})", "{{backend}}"),
    ),
)

ENGINE = Board(
    "engine",
    "Slipstream: models in this process",
    (),
    (
        Panel(
            "Answers",
            "short",
            (
                Query(f"sum by ({_ENGINE}) (vllm:num_requests_running)", "{{engine}} running"),
                Query(f"sum by ({_ENGINE}) (vllm:num_requests_waiting)", "{{engine}} waiting"),
            ),
        ),
        one("Keys and values", "percentunit", f"max by ({_ENGINE}) (vllm:kv_cache_usage_perc)", "{{engine}}"),
        Panel(
            "Tokens",
            "short",
            (
                Query(rate("vllm:prompt_tokens_total", _ENGINE), "{{engine}} prompts"),
                Query(rate("vllm:generation_tokens_total", _ENGINE), "{{engine}} answers"),
            ),
        ),
        Panel("First token", "s", quantiles("vllm:time_to_first_token_seconds", "engine")),
        one("Busy", "percentunit", rate("slipstream_engine_busy_seconds_total", _ENGINE), "{{engine}}"),
        one(
            "Batch fill",
            "percentunit",
            f"{rate('slipstream_engine_step_answers_total', _ENGINE)}"
            f" / ({rate('slipstream_engine_steps_total', _ENGINE)} > 0)"
            f" / sum by ({_ENGINE}) (slipstream_engine_places)",
            "{{engine}}",
        ),
        one(
            "Prompts from the prefix cache",
            "percentunit",
            share(rate("vllm:prefix_cache_hits_total", _ENGINE), rate("vllm:prefix_cache_queries_total", _ENGINE)),
            "{{engine}}",
        ),
        one(
            "Accepted drafts",
            "percentunit",
            share(
                rate("vllm:spec_decode_num_accepted_tokens_total", _ENGINE),
                rate("vllm:spec_decode_num_draft_tokens_total", _ENGINE),
            ),
            "{{engine}}",
        ),
    ),
)

BOARDS = (MONEY, CACHES, SERVICE, BACKENDS, ENGINE)
