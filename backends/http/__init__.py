"""HTTP upstreams: our own transport, OpenAI-compatible servers, Anthropic's Messages API."""
