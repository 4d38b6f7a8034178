"""Policy files for tests: a valid one, a stand-in type of backend, and reading from text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from backends.config import ByteSize, Config, Duration, Secret
from backends.errors import ConfigurationError
from policies.policy_file.load import LoadedPolicy, parse_policy

ENVIRON = {
    "UPSTREAM_KEY": "sk-upstream-0123456789",
    "GATEWAY_KEY": "sk-gateway-0123456789",
    "OTHER_KEY": "sk-other-0123",
}

MINIMAL = """\
version: 1
backends:
  up: {type: openai, base_url: "http://127.0.0.1:9000/v1", api_key: "env:UPSTREAM_KEY"}
keys:
  - {name: dev, key: "env:GATEWAY_KEY"}
routes:
  - name: all
    match: {models: ["*"]}
    backends: [{ref: up}]
"""

FULL = """\
version: 1
backends:
  up: {type: openai, base_url: "http://127.0.0.1:9000/v1", api_key: "env:UPSTREAM_KEY", wait: 2s, max_answer: 8MiB}
  cloud: {type: openai, base_url: "https://cloud.example/v1", headers: {x-team: a}}
keys:
  - {name: dev, key: "env:GATEWAY_KEY", tenant: red, models: ["gpt-*"]}
  - {name: ops, key: "env:OTHER_KEY"}
stores:
  memory: {max_size: 64MiB}
  redis: {url: "env:OTHER_KEY", timeout: 10ms, prefix: s}
defaults:
  timeouts: &times {connect: 2s, first_token: 8s}
  retry: {attempts: 1, on: [connect, "429"], backoff: {initial: 50ms, jitter: 0.5}}
  cache: {scope: key}
routes:
  - name: chat
    match:
      models: [gpt-4o, "gpt-4o-*"]
      paths: [/v1/chat/completions]
      headers: {x-team: "supp*"}
      keys: [dev]
      tenants: [red]
    backends:
      - {ref: up, model: llama, weight: 70}
      - {ref: cloud, priority: 1}
    timeouts: {<<: *times, total: 90s}
    circuit_breaker: {consecutive_failures: 3, open_for: 15s}
    fallbacks: {on: [error, timeout], routes: [spare]}
    cache: {scope: tenant, epoch: 2026-11, exact: {ttl: 1h, coalesce: off, max_entry: 64KiB}}
  - name: spare
    match: {internal: true}
    backends: [{ref: cloud}]
    cache: null
  - name: rest
    match: {models: ["*"]}
    backends: [{ref: up}]
"""


class UpstreamConfig(Config):
    """What a leaf's settings look like."""

    base_url: str = Field(description="Where its API begins.", pattern=r"^https?://[^/\s]+")
    api_key: Secret | None = None
    headers: dict[str, str] = Field({})
    wait: Duration = Field(1.0, gt=0, le=60)
    max_answer: ByteSize = Field(1024**2, ge=1024)
    max_connections: int = Field(1000, ge=1)


def settings_of(kind: str) -> type[Config]:
    """The settings of the only type there is."""
    if kind != "openai":
        raise ConfigurationError(f'unknown backend type "{kind}". Known types: openai')
    return UpstreamConfig


def parse(text: str | bytes, environ: Mapping[str, str] = ENVIRON) -> LoadedPolicy:
    """A policy from its text; messages call the file policy.yaml."""
    raw = text.encode() if isinstance(text, str) else text
    return parse_policy(raw, Path("policy.yaml"), environ, settings_of)
