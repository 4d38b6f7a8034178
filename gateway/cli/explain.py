"""`slipstream explain`: the route and the stages that a request would take through a policy, without sending it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import click

from backends.config import format_duration
from backends.operations import BY_PATH
from gateway.assembly.stages import describe_stages
from gateway.cli.loading import file_argument, format_option, no_env_option, read_policy_or_exit
from policies.forecast import as_call, reasons, retries, rule
from policies.matching.conditions import below_root
from policies.matching.globs import allows
from policies.matching.route_matcher import RouteMatcher, RouteVerdict
from policies.passthrough.rules import PassRules, is_api_path
from policies.policy_file.load import LoadedPolicy
from policies.schema import Policy, RouteBackend, RoutePolicy
from policies.speculation.auto.explained import describe_ways


@dataclass(frozen=True, slots=True)
class ExplainedStage:
    """A stage of a route's stack. `depth` is its distance from the top; all backends of a pool have the same."""

    name: str
    detail: str
    depth: int


@dataclass(frozen=True, slots=True)
class ExplainedRequest:
    """The properties of a request on which its route and its stages depend."""

    path: str
    model: str
    key: str
    tenant: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: dict[str, Any]


@click.command()
@file_argument
@click.argument("request", type=click.File("r", encoding="utf-8"))
@click.option("--path", default="/v1/chat/completions", show_default=True, help="The path that is called.")
@click.option(
    "--key", metavar="NAME", help="The name of the key that is presented.  [default: the first of the policy]"
)
@click.option(
    "--header", "headers", metavar="'NAME: VALUE'", multiple=True, help="A header of the request; repeatable."
)
@format_option
@no_env_option
@click.pass_context
def explain(
    context: click.Context,
    *,
    file: Path,
    request: TextIO,
    path: str,
    key: str | None,
    headers: tuple[str, ...],
    form: str,
    no_env: bool,
) -> None:
    """Show which route of a policy FILE takes a REQUEST (its JSON body, - for standard input), and why no other.

    Nothing is sent. The exit code is 1 if no route takes it.

    \b
    Examples:
      slipstream explain policy.yaml request.json
      echo '{"model": "gpt-4o"}' | slipstream explain policy.yaml - --key dev --header 'x-team: support'
    """
    loaded = read_policy_or_exit(file, no_env=no_env)
    name, tenant = _caller(loaded.policy, key)
    body = _body(request)
    fields = tuple(_field(header) for header in headers)
    explained = ExplainedRequest(path, _model(body), name, tenant, fields, body)
    verdicts = RouteMatcher(loaded.policy.routes).explain(
        model=explained.model,
        path=below_root(path),
        headers=explained.headers,
        key=explained.key,
        tenant=explained.tenant,
    )
    route = _chosen(loaded.policy, explained, verdicts)
    stages = describe_stack(route, loaded, explained) if route is not None else []
    if form == "json":
        click.echo(json.dumps(_as_data(explained, route, stages, verdicts), indent=2))
    else:
        click.echo(_as_text(explained, route, stages, verdicts, loaded))
    context.exit(0 if route is not None else 1)


def describe_stack(route: RoutePolicy, loaded: LoadedPolicy, explained: ExplainedRequest) -> list[ExplainedStage]:
    """The stages that the request passes in this route, from top to bottom, without those that do not apply to it."""
    call = as_call(below_root(explained.path), explained.body, explained.tenant)
    described = describe_stages(route, loaded.policy.stores, call)
    ways = describe_ways(route, loaded.policy, call)
    if ways:
        described = [(name, f"{detail}; {ways}" if name == "speculation" else detail) for name, detail in described]
    if route.slo is not None:
        late = route.admission.describe() if route.admission is not None else "counted, and nothing done about it"
        described.append(("admission", f"{route.slo.describe()}; {late}"))
    described.append(("pool", _pool_detail(route)))
    stages = [ExplainedStage(name, detail, depth) for depth, (name, detail) in enumerate(described)]
    whys = {id(reason.part): reason.why for reason in reasons(route, call, loaded.policy)}
    by_priority = sorted(route.backends, key=lambda part: part.priority)
    depth = len(stages)
    return [
        *stages,
        *(ExplainedStage(part.ref, _leaf(part, route, loaded, whys.get(id(part))), depth) for part in by_priority),
    ]


def _pool_detail(route: RoutePolicy) -> str:
    balance = f"{route.balance}: {rule(route)}; " if len(route.backends) > 1 else ""
    hedge = f"{route.hedge.describe()}; " if route.hedge is not None else ""
    total = format_duration(route.timeouts.total)
    return f"{balance}{hedge}{retries(route)}; {route.circuit_breaker.describe()}; {total} in all"


def _leaf(part: RouteBackend, route: RoutePolicy, loaded: LoadedPolicy, why: str | None) -> str:
    peers = sum(other.weight for other in route.backends if other.priority == part.priority)
    share = f"{100 * part.weight / peers:.3g} % of priority {part.priority}" if part.weight else "weight 0: not asked"
    place = share if why is None else f"priority {part.priority}, {why}"
    kind, settings = loaded.backends[part.ref]
    health = getattr(settings, "health", None)
    probe = f", probed at {health.path} every {format_duration(health.interval)}" if health is not None else ""
    keys = getattr(settings, "api_keys", None) or ()
    choice = f", {len(keys)} keys, each call by what is left" if len(keys) > 1 else ""
    quota = getattr(settings, "quota", None)
    choice += f", {quota.describe()}" if quota is not None else ""
    return f"{kind}, {place}" + (f', asked for model "{part.model}"' if part.model else "") + choice + probe


def _caller(policy: Policy, name: str | None) -> tuple[str, str]:
    """The name and the tenant of a key; by default, of the policy's first one."""
    if name is None:
        return (policy.keys[0].name, policy.keys[0].tenant) if policy.keys else ("", "default")
    for key in policy.keys:
        if key.name == name:
            return key.name, key.tenant
    known = ", ".join(key.name for key in policy.keys) or "none"
    raise click.BadParameter(f'the policy has no key named "{name}". Known: {known}', param_hint="--key")


def _body(request: TextIO) -> dict[str, Any]:
    """Read the body of the request."""
    try:
        body = json.load(request)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="REQUEST") from error
    if not isinstance(body, dict):
        raise click.BadParameter("a request's body is a JSON object", param_hint="REQUEST")
    return body


def _model(body: dict[str, Any]) -> str:
    """The model that the body names, or ""."""
    model = body.get("model", "")
    return model if isinstance(model, str) else ""


def _field(header: str) -> tuple[bytes, bytes]:
    name, colon, value = header.partition(":")
    if not colon or not name.strip():
        raise click.BadParameter(f"{header!r}: write it as 'name: value'", param_hint="--header")
    return name.strip().lower().encode(), value.strip().encode()


def _chosen(policy: Policy, explained: ExplainedRequest, verdicts: Sequence[RouteVerdict]) -> RoutePolicy | None:
    if explained.model and not _may_ask(policy, explained):
        return None
    route = _matching(policy, verdicts)
    if route is None or not _may_take(policy, explained, route.name):
        return None
    return route if _passes(policy, route, explained.path) else None


def _matching(policy: Policy, verdicts: Sequence[RouteVerdict]) -> RoutePolicy | None:
    """The first route whose conditions hold, whoever may take it."""
    name = next((verdict.route for verdict in verdicts if verdict.is_chosen), None)
    return next((route for route in policy.routes if route.name == name), None)


def _passes(policy: Policy, route: RoutePolicy, path: str) -> bool:
    """Whether the gateway knows the path, or the route lists what a call with a body asks of it."""
    below = below_root(path)
    rules = PassRules(route.passthrough, is_shared=policy.has_several_tenants)
    return below in BY_PATH or rules.allows("POST", below)


def _may_take(policy: Policy, explained: ExplainedRequest, route: str) -> bool:
    return all(not key.routes or route in key.routes for key in policy.keys if key.name == explained.key)


def _may_ask(policy: Policy, explained: ExplainedRequest) -> bool:
    return all(allows(key.models, explained.model) for key in policy.keys if key.name == explained.key)


def _as_data(
    explained: ExplainedRequest,
    route: RoutePolicy | None,
    stages: Sequence[ExplainedStage],
    verdicts: Sequence[RouteVerdict],
) -> dict[str, Any]:
    return {
        "request": {"path": explained.path, "model": explained.model, "key": explained.key, "tenant": explained.tenant},
        "route": route.name if route is not None else None,
        "stack": [asdict(stage) for stage in stages],
        "routes": [
            {
                "name": verdict.route,
                "matches": verdict.holds,
                "failures": [asdict(failure) for failure in verdict.failures],
            }
            for verdict in verdicts
        ],
    }


def _as_text(
    explained: ExplainedRequest,
    route: RoutePolicy | None,
    stages: Sequence[ExplainedStage],
    verdicts: Sequence[RouteVerdict],
    loaded: LoadedPolicy,
) -> str:
    caller = f"key {explained.key}, tenant {explained.tenant}" if explained.key else "no key"
    model = f'model "{explained.model}"' if explained.model else "no model"
    lines = [f"{explained.path}, {model}, {caller}", ""]
    if route is not None:
        index = loaded.policy.routes.index(route)
        lines += [f"Route {route.name} ({loaded.document.position(('routes', index), str(loaded.path))})", ""]
        lines += _tree(stages)
    elif explained.model and not _may_ask(loaded.policy, explained):
        lines.append(f'No route: key {explained.key} may not ask for "{explained.model}" (its `models`). Answer: 404.')
    elif (matching := _matching(loaded.policy, verdicts)) is None:
        lines.append("No route takes this request. Answer: 404.")
    elif not _may_take(loaded.policy, explained, matching.name):
        lines.append(f"No route: {matching.name} is not one of the `routes` of key {explained.key}. Answer: 404.")
    else:
        below = below_root(explained.path)
        status = 403 if is_api_path(below) else 404
        lines.append(
            f"No route: POST {below} does not pass {matching.name}, whose passthrough.allow would have to list it. "
            f"Answer: {status}."
        )
    others = [verdict for verdict in verdicts if route is None or not verdict.is_chosen]
    if others:
        lines += ["", "Other routes" if route is not None else "Routes"]
        width = max(len(verdict.route) for verdict in others)
        lines += [f"  {verdict.route:<{width}}  {_reason(verdict)}" for verdict in others]
    return "\n".join(lines)


def _tree(stages: Sequence[ExplainedStage]) -> list[str]:
    labels = []
    for stage, following in zip(stages, [*stages[1:], None], strict=True):
        branch = "├ " if following is not None and following.depth == stage.depth else "└ "
        labels.append("   " * (stage.depth - 1) + branch + stage.name if stage.depth else stage.name)
    width = max(len(label) for label in labels)
    return [f"  {label:<{width}}  {stage.detail}" for label, stage in zip(labels, stages, strict=True)]


def _reason(verdict: RouteVerdict) -> str:
    if verdict.is_chosen:
        return "its conditions hold"
    if verdict.holds:
        return "its conditions hold too, but it stands further down"
    return "; ".join(
        failure.expected
        if failure.condition == "internal"
        else f'{failure.condition}: "{failure.actual}" is not {failure.expected}'
        for failure in verdict.failures
    )
