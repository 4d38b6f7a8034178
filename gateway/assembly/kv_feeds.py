"""Feeds that tell which prompts the engines of backends hold, and how those engines write prompts as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from backends.clock import Clock
from backends.errors import ConfigurationError
from backends.kv_events import KvPublisher
from backends.protocol import Backend
from gateway.runtime import Runtime
from policies.pool.load.fleet import Fleet
from policies.pool.prompts.engine_text import EngineText, Writing

if TYPE_CHECKING:
    from policies.pool.prompts.kv_feed import KvFeed


def engine_texts(leaves: Mapping[str, Backend], previous: Runtime | None) -> dict[str, EngineText]:
    """How the engines of backends write prompts, one for all that do it alike."""
    known = {feed.text.way: feed.text for feed in previous.kv_feeds.values()} if previous is not None else {}
    texts = {}
    for name, leaf in leaves.items():
        if isinstance(leaf, KvPublisher) and leaf.kv_events is not None:
            text = EngineText(leaf.kv_events, _load_prompt_text)
            texts[name] = known.setdefault(text.way, text)
    return texts


def kv_feeds(
    leaves: Mapping[str, Backend],
    fleet: Fleet | None,
    texts: Mapping[str, EngineText],
    clock: Clock,
    previous: Runtime | None,
) -> dict[str, KvFeed]:
    """Feeds of the backends about which some route asks what they hold."""
    feeds: dict[str, KvFeed] = {}
    if fleet is None or not fleet.wants_blocks:
        return feeds
    for name, text in texts.items():
        leaf, slots = leaves[name], fleet.slots(name)
        if not slots or not isinstance(leaf, KvPublisher) or leaf.kv_events is None:
            continue
        known = previous.kv_feeds.get(name) if previous is not None and previous.leaves.get(name) is leaf else None
        if known is not None and known.slots == slots:
            feeds[name] = known
            continue
        try:
            from policies.pool.prompts.kv_feed import KvFeed
        except ImportError as error:
            raise _lacks(error) from error
        feeds[name] = KvFeed(name, leaf.kv_events, slots, text, index=fleet.index, clock=clock)
    return feeds


def _load_prompt_text(folder: str) -> Writing:
    try:
        from backends.serving.prompt_text import load_prompt_text
    except ImportError as error:
        raise _lacks(error) from error
    return load_prompt_text(folder)


def _lacks(error: ImportError) -> ConfigurationError:
    return ConfigurationError(f"kv_events lacks {error.name}: pip install 'slipstream-gateway[kv-events]'")
