"""The policies that `slipstream serve` generates without a policy file: for an upstream, a model, or a trial."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from policies.prices.reading import has_list_prices

UPSTREAM_KEY = "UPSTREAM_KEY"
"""The environment variable that holds the API key for `--upstream`."""

_ENGINE_NEEDS = ("torch", "numpy", "safetensors", "tokenizers", "jinja2")


class PolicyOrigin(NamedTuple):
    """What is served without a policy file. Both are None for a trial."""

    upstream: str | None = None
    model: dict[str, str] | None = None
    """The settings of a backend of `type: engine`."""


def has_embedded_models() -> bool:
    """Whether the models of the package can run here: they and PyTorch are installed."""
    if any(find_spec(module) is None for module in _ENGINE_NEEDS):
        return False
    folder = resources.files("backends.engine.demo_models")
    return all(folder.joinpath(name, "config.json").is_file() for name in ("target", "draft"))


@contextmanager
def ready_made_policy(origin: PolicyOrigin, *, has_key: bool) -> Iterator[Path]:
    """A generated policy file, deleted afterwards. `has_key`: `UPSTREAM_KEY` is set in the environment."""
    if origin.upstream is not None:
        policy = _for_upstream(origin.upstream, has_key)
    elif origin.model is not None:
        policy = _for_model(origin.model)
    else:
        name = "embedded.yaml" if has_embedded_models() else "scripted.yaml"
        policy = yaml.safe_load(resources.files("policies.presets").joinpath(name).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="slipstream-", ignore_cleanup_errors=True) as directory:
        path = Path(directory, "policy.yaml")
        # So that the dashboard has something to show; it goes with the folder.
        policy["ledger"] = {"url": f"sqlite:///{path.with_name('ledger.sqlite3')}", "keep": "8d"}
        path.write_text(yaml.safe_dump(policy, sort_keys=False), encoding="utf-8")
        yield path


def model_name(model: str) -> str:
    """The name under which clients ask for a model that is served from a folder: the folder's name."""
    return Path(model).expanduser().resolve().name


def _for_upstream(upstream: str, has_key: bool) -> dict[str, Any]:
    backend = {"type": "openai", "base_url": upstream}
    if has_key:
        backend["api_key"] = f"env:{UPSTREAM_KEY}"
    policy = _policy("upstream", backend, "*")
    # Who takes money is not on this machine; a server of one's own starts sooner without the list.
    if upstream.startswith("https://") and has_list_prices():
        policy["prices"] = {}
    return policy


def _for_model(settings: dict[str, str]) -> dict[str, Any]:
    return _policy("model", {"type": "engine", **settings}, model_name(settings["model"]))


def _policy(name: str, backend: dict[str, str], models: str) -> dict[str, Any]:
    return {
        "version": 1,
        "backends": {name: backend},
        "routes": [{"name": "all", "match": {"models": [models]}, "backends": [{"ref": name}]}],
    }
