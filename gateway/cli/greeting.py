"""What `slipstream serve` prints at its start: its address, who may call it, a command that tries it, and warnings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from gateway.settings import Settings
from policies.matching.globs import is_glob
from policies.policy_file.load import LoadedPolicy

TRIAL = "the built-in trial"
"""The name of the policy when neither a file nor a model is given, and a scripted backend answers."""
EMBEDDED = "the built-in test models"
"""The name of the policy when neither a file nor a model is given, and the models of the package answer."""
TRIAL_PROMPTS = ("What is 12+30?", "Sort these: 30, 10, 20", "What is Slipstream?")
"""Prompts that the test models answer correctly."""

_LIST_TIMEOUT_S = 2.0


def greeting(settings: Settings, loaded: LoadedPolicy, source: str, port: int, model: str, key: str) -> str:
    """The lines for standard error.

    `source` names the origin of the policy, `model` a model that it serves. `key` is a shell expression for an API key,
    empty if none is needed.
    """
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    root = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    lines = [f"Slipstream listens on {root}/v1, policy revision {loaded.revision} ({source})."]
    if not loaded.policy.asks_for_keys:
        lines.append("The policy has no `keys`: anybody on this machine may call, nobody else can (loopback only).")
    if loaded.policy.asks_for_keys and not loaded.policy.keys:
        lines.append(f"Callers need a key: slipstream keys create --config {shlex.quote(source)} --name NAME")
    if source == TRIAL:
        lines.append(
            "No upstream is named: a scripted backend answers. For a real one: slipstream serve --upstream URL; "
            "for models that run here: pip install 'slipstream-gateway[engine]'"
        )
    if source == EMBEDDED:
        lines.append(
            "Two small test models answer, slipstream-target and its draft: sums, sorting, JSON, a little small talk, "
            "and nothing that could be relied on. For a model of yours: slipstream serve --model DIR"
        )
        prompts = "  ".join(f'"{prompt}"' for prompt in TRIAL_PROMPTS)
        lines.append(f"They answer these, and little else: {prompts}")
    if loaded.policy.ledger is not None:
        is_of_a_file = source.endswith((".yaml", ".yml"))
        lines.append(f"Dashboard: {root}/dashboard" + ("" if is_of_a_file else " (its ledger ends with this run)"))
    question = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], "stream": True}
    body = shlex.quote(json.dumps(question))
    header = f' \\\n    -H "authorization: Bearer {key}"' if key else ""
    key_option = " --key env:NAME" if key else ""
    lines.append(f"Talk to it: slipstream chat --url {root} --model {shlex.quote(model)}{key_option}")
    lines.append("Try it:")
    lines.append(f"  curl -N {root}/v1/chat/completions -H 'content-type: application/json'{header} \\\n    -d {body}")
    return "\n".join(lines)


def model_to_try(loaded: LoadedPolicy) -> str:
    """A model that the policy names, or a placeholder."""
    for route in loaded.policy.routes:
        for name in route.match.models:
            if not is_glob(name):
                return name
    return "MODEL-NAME" if any(kind != "scripted" for kind, _ in loaded.backends.values()) else "any-model"


def first_listed_model(upstream: str, key: str) -> tuple[str | None, list[str]]:
    """The first model that an upstream lists, and warnings if its answer is not that of an OpenAI-compatible server."""
    # Imported late: only `--upstream` needs it, and it would be a quarter of all that a start imports.
    import httpx

    url = f"{upstream.rstrip('/')}/models"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.get(url, headers=headers, timeout=_LIST_TIMEOUT_S, trust_env=False)
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"]), []
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        hint = {401: "set UPSTREAM_KEY to its key", 404: "such an address usually ends in /v1"}.get(status)
        return None, [f"{url} answers with status {status}" + (f"; {hint}" if hint else "")]
    except httpx.HTTPError as error:
        return None, [f"{url} does not answer yet: {error}"]
    except (ValueError, LookupError, TypeError):
        return None, [f"{url} lists no model; is this an OpenAI-compatible server?"]


def unknown_variable_warnings(environ: Mapping[str, str]) -> Iterable[str]:
    """A warning for each SLIPSTREAM_ variable that is not a setting, which is usually a misspelt one."""
    known = [f"SLIPSTREAM_{name.upper()}" for name in Settings.model_fields]
    for name in sorted(environ):
        if name.startswith("SLIPSTREAM_") and name not in known:
            near = get_close_matches(name, known, n=1)
            yield f"{name} is not a setting and is ignored." + (f" Did you mean {near[0]}?" if near else "")


def model_copy_warnings(loaded: LoadedPolicy, workers: int) -> Iterable[str]:
    """A warning if several workers would each load the models."""
    models = [name for name, (kind, _) in loaded.backends.items() if kind == "engine"]
    if workers > 1 and models:
        copies = f"each of the {workers} workers loads its own copy of {', '.join(models)}"
        yield f"{copies}, with a prefix cache of its own; one worker serves a model best"


def first_key_expression(loaded: LoadedPolicy) -> str:
    """A shell expression for the first key, read from where the policy reads it; empty if nobody needs one."""
    if not loaded.policy.keys:
        return "$KEY" if loaded.policy.asks_for_keys else ""
    kind, _, place = str(loaded.document.value(("keys", 0, "key"))).partition(":")
    return f"${place}" if kind == "env" else f"$(cat {shlex.quote(place)})"
