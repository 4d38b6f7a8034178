"""What a policy asks of its backends, looked at before it comes into force."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from backends.errors import ConfigurationError
from backends.operations import Operation
from backends.protocol import Backend
from backends.resume import Continues
from gateway.assembly.drafting import is_target
from policies.policy_file.load import LoadedPolicy
from policies.speculation.settings import ExactPolicy


def check_dashboard(loaded: LoadedPolicy) -> None:
    """Whether what its sign-in needs is there. Raises: ConfigurationError."""
    policy = loaded.policy
    if policy.dashboard.oidc is None:
        return
    if policy.ledger is None or not policy.asks_for_keys:
        raise ConfigurationError(
            "dashboard.oidc needs `ledger`, which it shows, and keys: without them nobody is asked"
        )
    if find_spec("authlib") is None:
        raise ConfigurationError("dashboard.oidc needs: pip install 'slipstream-gateway[oidc]'")


def check_batches(loaded: LoadedPolicy, leaves: Mapping[str, Backend]) -> None:
    """Whether backends that are to take batches may have an API for them. Raises: ConfigurationError."""
    for route in loaded.policy.routes:
        for part in route.backends if route.batch.mode == "provider" else ():
            if Operation.PASSTHROUGH not in leaves[part.ref].capabilities.operations:
                raise ConfigurationError(
                    f'route "{route.name}": batch: provider needs backends of type openai, which "{part.ref}" is not'
                )


def check_resume(loaded: LoadedPolicy, leaves: Mapping[str, Backend]) -> None:
    """Whether streams that break off have where to go on. Raises: ConfigurationError."""
    for route in loaded.policy.routes:
        if route.resume is None:
            continue
        able = frozenset[Continues]().union(*(leaves[part.ref].capabilities.continues for part in route.backends))
        if "tokens" not in able and (route.resume.mode == "exact" or not able):
            raise ConfigurationError(
                f'route "{route.name}": resume needs backends that go on with an answer: type engine, or type openai '
                "with `continues: slipstream`" + (", final_message or prefill" if route.resume.mode != "exact" else "")
            )


def check_speculation(loaded: LoadedPolicy, leaves: Mapping[str, Backend]) -> None:
    """Whether drafts and targets can do what exact speculation needs. Raises: ConfigurationError."""
    for route in loaded.policy.routes:
        if isinstance(route.speculative, ExactPolicy):
            if not any(is_target(leaves[part.ref]) for part in route.backends):
                raise ConfigurationError(
                    f'route "{route.name}": speculative: mode exact needs a backend that can check guesses: type '
                    "engine, or type openai with a slipstream behind it"
                )
            if Operation.COMPLETION not in leaves[route.speculative.draft].capabilities.operations:
                raise ConfigurationError(
                    f'route "{route.name}": the draft "{route.speculative.draft}" does not answer completions: take '
                    "one of type engine, or openai with a server that knows `return_token_ids`"
                )
