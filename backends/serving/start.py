"""Loads an engine from a backend's settings; the one module here that meets PyTorch, inside its functions."""

from __future__ import annotations

import json
import logging
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.engine.errors import EngineError, RequestRefused
from backends.errors import ConfigurationError
from backends.serving.fields import MAX_INPUTS
from backends.serving.fingerprint import fingerprint
from backends.serving.requests import Model
from backends.serving.sampling_defaults import sampling_defaults
from backends.serving.served_engine import StartedEngine
from backends.serving.settings import EngineConfig
from backends.serving.tool_syntax import SAMPLE_CHAT, SAMPLE_TOOLS, ToolSyntax, syntax_of

if TYPE_CHECKING:
    from backends.engine.options import EngineOptions
    from backends.engine.text.tokenizer import Tokenizer


_logger = logging.getLogger(__name__)


def start_engine(
    name: str, config: EngineConfig, *, model: Path, draft: Path | None, adapter: Path | None
) -> StartedEngine:
    """An engine that runs; takes seconds, and belongs in a worker thread.

    Raises: ConfigurationError where the folder cannot be served, or does not fit.
    """
    try:
        from backends.engine.engine import Engine
    except (ImportError, OSError) as error:
        problem = f"the engine's libraries cannot be loaded ({error}); install them again, or give them more memory"
        raise ConfigurationError(f"backends.{name}: {problem}") from error
    _logger.info("backend %s loads %s", name, model)
    if draft is not None:
        _check_draft(name, model, draft)
    engine = Engine(_options(config, model, draft, adapter))
    try:
        defaults = sampling_defaults(model)
        engine.start()
    except EngineError as error:
        raise ConfigurationError(f"backends.{name}: {error}") from error
    tokenizer = engine.tokenizer
    syntax = _tool_syntax(tokenizer)
    known = Model(
        vocabulary=tokenizer,
        vocab_size=engine.config.vocab_size,
        max_context=engine.max_context,
        grammars=engine.grammars,
        syntax=syntax,
        call_token=_hidden_token(tokenizer, syntax.start) if syntax is not None else None,
        pooling=config.pooling,
        num_dimensions=engine.config.hidden_size,
        sampling=defaults,
    )
    name_of_all = fingerprint(
        config,
        model=model,
        adapter=adapter,
        device=_device(config),
        max_context=engine.max_context,
        version=version("slipstream-gateway"),
    )
    _logger.info("backend %s is ready", name)
    return StartedEngine(engine, known, name_of_all)


def _options(config: EngineConfig, model: Path, draft: Path | None, adapter: Path | None) -> EngineOptions:
    from backends.engine.options import EngineOptions

    return EngineOptions(
        model=model,
        draft=draft,
        adapter=adapter,
        device=config.device,
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        quantization=config.quantization,
        max_context=config.max_context,
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        # The backend counts first, and lets one call with many prompts be over its limit.
        max_requests=config.max_requests + MAX_INPUTS,
        kv_bytes=config.memory,
        host_bytes=config.host_memory or 0,
        speculate=config.speculate,
        threads=config.threads,
        reference_kernels=config.kernels == "reference",
        tensor_parallel=config.tensor_parallel,
        measure_peaks=config.measure_peaks,
    )


def _check_draft(name: str, model: Path, draft: Path) -> None:
    """What a draft proposes are tokens, so it must number them as the model does.

    Raises: ConfigurationError.
    """
    from backends.engine.text.tokenizer import TOKENIZER_FILE, Tokenizer

    # A draft without a tokenizer of its own was made for the model's.
    if not (draft / TOKENIZER_FILE).exists():
        return
    try:
        numbered = [_vocabulary(Tokenizer(folder)) for folder in (model, draft)]
    except EngineError as error:
        raise ConfigurationError(f"backends.{name}: {error}") from error
    if numbered[0] != numbered[1]:
        problem = f'the model in "{draft}" has another tokenizer than "{model}"; take a draft of the same family'
        raise ConfigurationError(f"backends.{name}.draft: {problem}")


def _vocabulary(tokenizer: Tokenizer) -> tuple[Any, dict[int, str]]:
    """Every token and its number."""
    written = json.loads(tokenizer.to_json())
    return written["model"].get("vocab"), {token["id"]: token["content"] for token in written.get("added_tokens", ())}


def _tool_syntax(tokenizer: Tokenizer) -> ToolSyntax | None:
    """How the model's template writes a call, seen by letting it write one."""
    try:
        return syntax_of(tokenizer.render_chat(SAMPLE_CHAT, SAMPLE_TOOLS))
    except RequestRefused:
        return None


def _hidden_token(tokenizer: Tokenizer, text: str) -> int | None:
    """The token that a text is, if it is a special one, which decoding leaves out."""
    tokens = tokenizer.encode(text, add_special_tokens=False)
    return tokens[0] if len(tokens) == 1 and not tokenizer.token_bytes(tokens[0]) else None


def _device(config: EngineConfig) -> str:
    """What computes: the same numbers are to be had where it is the same."""
    import torch

    if config.device != "cpu" and torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
