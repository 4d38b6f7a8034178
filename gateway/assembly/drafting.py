"""The stages in which what the target says is guessed, by a draft or by a text at hand: what they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import TypeGuard

from backends.drafts.push import Pushable
from backends.drafts.rounds import Verifier
from backends.errors import ConfigurationError
from backends.protocol import Backend
from gateway.assembly.site import Site
from gateway.assembly.speculation import draft_pool
from policies.schema import RoutePolicy
from policies.speculation.exact import ExactSpeculation, Target
from policies.speculation.predicted import Predicted
from policies.speculation.rounds.words import Words
from policies.speculation.settings import ExactPolicy, PredictedPolicy


def exact_settings(route: RoutePolicy) -> ExactPolicy | None:
    """What a route says of it, if it has one."""
    return route.speculative if isinstance(route.speculative, ExactPolicy) else None


def draft_exactly(inner: Backend, settings: ExactPolicy, site: Site) -> Backend:
    """The stage around a route's pool."""
    leaves = site.parts.leaves
    names = {part.ref for part in site.route.backends}
    targets = {name: leaf for name in names if is_target(leaf := leaves[name])}
    words = _words(settings.tokenizer, site.route.name) if settings.tokenizer is not None else None
    return ExactSpeculation(inner, settings, draft_pool(site), targets, site.parts.clock, words)


def _words(folder: str, route: str) -> Words:
    try:
        from backends.drafts.answer_writer import TokenizerWords
        from backends.engine.errors import ModelError
        from backends.engine.text.tokenizer import Tokenizer
    except ImportError as error:
        raise ConfigurationError(
            f"route \"{route}\": `probes` lack {error.name}: pip install 'slipstream-gateway[engine]'"
        ) from error
    try:
        return TokenizerWords(Tokenizer(Path(folder)))
    except ModelError as error:
        raise ConfigurationError(f'route "{route}": speculative.tokenizer: {error}') from error


def is_target(leaf: Backend) -> TypeGuard[Target]:
    """Whether guesses can be checked by a backend of that kind."""
    return isinstance(leaf, Pushable) and isinstance(leaf, Verifier)


def predicted_settings(route: RoutePolicy) -> PredictedPolicy | None:
    """What a route says of texts that answers will repeat, if it asks for that."""
    return route.speculative if isinstance(route.speculative, PredictedPolicy) else None


def predict(inner: Backend, settings: PredictedPolicy, site: Site) -> Backend:
    """The stage around a route's pool."""
    return Predicted(inner, settings)
