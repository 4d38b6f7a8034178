"""HTTP upstreams: our httpx transport, OpenAI-compatible servers, Anthropic's Messages API."""
