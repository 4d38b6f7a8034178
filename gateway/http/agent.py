"""Which program calls, by its `user-agent`: a few families, so that sums by them stay short."""

from __future__ import annotations

from functools import lru_cache

OTHER = "other"
_CODEX = "codex"
_FAMILIES = {
    "openai/python": "openai-python",
    "asyncopenai/python": "openai-python",
    "openai/js": "openai-node",
    "openai/java": "openai-java",
    "openai/go": "openai-go",
    "anthropic/python": "anthropic-python",
    "asyncanthropic/python": "anthropic-python",
    "anthropic/js": "anthropic-node",
    "claude-cli": "claude-code",
    "claude-code": "claude-code",
    "litellm": "litellm",
    "curl": "curl",
    "wget": "wget",
    "python-httpx": "httpx",
    "python-requests": "requests",
    "aiohttp": "aiohttp",
    "node-fetch": "node",
    "undici": "node",
    "node": "node",
    "go-http-client": "go",
    "mozilla": "browser",
}
_LONGEST = 64


@lru_cache(maxsize=1024)
def agent_family(user_agent: bytes) -> str:
    """One of a few names; `other` for the rest, and empty where the client does not say."""
    if not user_agent:
        return ""
    # Its first product, as in `OpenAI/Python 1.52.0` or `curl/8.5.0`: a name, at times one of a language, a version.
    product = user_agent[:_LONGEST].decode("latin-1").lower().split(" ", 1)[0].split("/")
    known = _FAMILIES.get("/".join(product[:2])) or _FAMILIES.get(product[0])
    # Codex calls itself by the way in which it runs: `codex_cli_rs`, `codex_exec`, `codex-tui`.
    return known or (_CODEX if product[0].startswith(_CODEX) else OTHER)
