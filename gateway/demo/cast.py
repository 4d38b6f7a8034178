"""Who calls in the made-up ledger, which models and backends answer, and what these cost."""

from __future__ import annotations

from typing import NamedTuple


class PricedModel(NamedTuple):
    """Prices are in whole pico-dollars a token; None: unknown."""

    name: str
    route: str
    backend: str
    input_price: int | None
    output_price: int
    share: float
    prompt_tokens: int
    answer_tokens: int
    first_token_ms: int
    cached_share: float = 0.0
    """Of its prompts' tokens, that the provider has kept from calls before."""


class CallingTenant(NamedTuple):
    """One of those who call, with its keys, each with its share."""

    name: str
    share: float
    keys: tuple[tuple[str, float], ...]
    priority: str = "normal"


SONNET = PricedModel("claude-sonnet-4-5", "chat", "anthropic", 3_000_000, 15_000_000, 0.16, 3200, 380, 620, 0.62)
MINI = PricedModel("gpt-5-mini", "chat", "openai", 250_000, 2_000_000, 0.30, 1500, 420, 480, 0.35)
OWN = PricedModel("llama-3.3-70b", "own", "gpu-a", 400_000, 600_000, 0.26, 900, 300, 310, 0.5)
FLASH = PricedModel("gemini-2.5-flash", "chat", "openai", 300_000, 2_500_000, 0.12, 1800, 260, 400)
EMBEDDING = PricedModel("text-embedding-3-small", "embed", "openai", 20_000, 0, 0.13, 400, 0, 0)
UNPRICED = PricedModel("qwen3-coder-next", "own", "gpu-b", None, 0, 0.03, 2600, 500, 350)
MODELS = (SONNET, MINI, OWN, FLASH, EMBEDDING, UNPRICED)

SUPPORT = CallingTenant("support", 0.40, (("support-web", 0.7), ("support-app", 0.2), ("support-mail", 0.1)), "high")
SEARCH = CallingTenant("search", 0.32, (("search-api", 0.8), ("search-index", 0.2)))
AGENTS = CallingTenant("agents", 0.18, (("agents-ci", 0.5), ("agents-review", 0.5)))
RESEARCH = CallingTenant("research", 0.10, (("research-notebooks", 0.6), ("research-batch", 0.4)), "low")
TENANTS = (SUPPORT, SEARCH, AGENTS, RESEARCH)
TWIN_OF_GPU = "gpu-b"
"""Takes every other call of `gpu-a`."""
