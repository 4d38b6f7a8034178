"""A policy file and its environment, for tests of the command line."""

from __future__ import annotations

from collections.abc import Callable

from click.testing import Result

POLICY = """\
version: 1
backends:
  gpu: {type: openai, base_url: "http://127.0.0.1:9000/v1", api_key: "env:UPSTREAM_KEY"}
  cloud: {type: openai, base_url: "http://127.0.0.1:9001/v1", headers: {x-api-key: sk-fixed, x-team: a}}
  last: {type: scripted}
keys:
  - {name: dev, key: "env:GATEWAY_KEY", tenant: red, models: ["gpt-*"]}
  - {name: ops, key: "env:OPS_KEY"}
routes:
  - name: support
    match: {models: ["gpt-*"], headers: {x-team: support}}
    backends: [{ref: gpu, model: llama, weight: 3}, {ref: cloud}, {ref: last, priority: 1}]
    fallbacks: {routes: [spare]}
    cache: {exact: {ttl: 90s}}
  - name: spare
    match: {internal: true}
    backends: [{ref: last}]
  - name: embed
    match: {paths: [/v1/embeddings]}
    backends: [{ref: cloud}]
    retry: {attempts: 0}
"""
ENVIRON = {"UPSTREAM_KEY": "sk-upstream-01234", "GATEWAY_KEY": "sk-gateway-01234", "OPS_KEY": "sk-ops-01234"}

Run = Callable[..., Result]
"""Calls `slipstream` with these arguments."""
