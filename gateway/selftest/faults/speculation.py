"""Fault 34: drafts that are bad, with models of our own: what is said stays the same to the token."""

from __future__ import annotations

from importlib import resources
from importlib.util import find_spec

from gateway.selftest.bench import Bench, chat
from gateway.selftest.check import Check
from gateway.selftest.run import CHAT, DidNotStart
from gateway.selftest.verdict import CheckOutcome, failed, passed, skipped

_PROMPTS = ("What is 12 + 30?", "Sort: pear, apple, fig", "Say hello.", "What is 7 * 8?", "Count from 1 to 9.")
_NEEDED = ("torch", "numpy", "safetensors", "tokenizers", "jinja2")


async def drafts(bench: Bench) -> CheckOutcome:
    """The built-in model with its draft, with itself as a draft, and with none: the same tokens at temperature 0."""
    if bench.is_quick:
        return skipped("left out by --quick: models have to be loaded")
    missing = [module for module in _NEEDED if find_spec(module) is None]
    folder = resources.files("backends.engine.demo_models")
    if missing or not folder.joinpath("target", "config.json").is_file():
        return skipped(
            f"needs {missing[0] if missing else 'the built-in models'}", "pip install 'slipstream-gateway[engine]'"
        )
    target, draft = (str(folder.joinpath(name)) for name in ("target", "draft"))
    backends = {
        "alone": {"type": "engine", "model": target, "device": "cpu"},
        "drafted": {"type": "engine", "model": target, "draft": draft, "device": "cpu"},
        "by-itself": {"type": "engine", "model": target, "draft": target, "device": "cpu"},
    }
    routes = [{"name": name, "match": {"models": [name]}, "backends": [{"ref": name}]} for name in backends]
    said: dict[str, list[str]] = {name: [] for name in backends}
    try:
        async with bench.gateway({"version": 1, "backends": backends, "routes": routes}, is_alone=True) as child:
            for prompt in _PROMPTS:
                for name, answers in said.items():
                    body = chat(prompt, name, temperature=0, max_tokens=40)
                    answers.append((await child.ask(CHAT, body, timeout_s=60)).text())
    except DidNotStart as error:
        return skipped(f"the built-in models do not start here: {str(error)[-200:]}")
    differ = sum(one != other for name in said for one, other in zip(said["alone"], said[name], strict=True))
    measured = f"{differ} of {2 * len(_PROMPTS)} answers differ"
    if differ or not all(said["alone"]):
        return failed(measured, "a draft changes what is said", "turn `draft` off, and report it")
    return passed(measured, "shortened: two drafts, greedy. The law of samples is tested by the project")


CHECKS = (Check("34", "bad drafts: the same tokens as without", drafts),)
