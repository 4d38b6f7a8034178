"""The stage that chooses a way for each call: what it is made of."""

from __future__ import annotations

from backends.errors import ConfigurationError
from backends.protocol import Backend
from gateway.assembly.site import Site
from policies.pool.pool import Pool
from policies.prices.price import Price
from policies.schema import RoutePolicy
from policies.speculation.auto.action import Action, Prices
from policies.speculation.auto.settings import AutoPolicy
from policies.speculation.auto.stage import DRAFT, TARGET, Auto, LossJudge
from policies.speculation.auto.told import ToldLoss


def choose_way(inner: Backend, settings: AutoPolicy, site: Site, small: Pool | None) -> Auto:
    """The stage around the target; `small` is the draft's, where that is allowed. Raises: ConfigurationError."""
    clock = site.parts.clock
    draft = judge = None
    if small is not None:
        draft, judge = Action(DRAFT, small, small.prices_of, clock), _judge(settings, site)
    elsewhere = []
    for name in settings.elsewhere:
        target = site.target(name)
        prices = _prices(site.stacks[name].policy, site)
        elsewhere.append((Action(name, target.backend, prices, clock), target))
    own = Action(TARGET, inner, _prices(site.route, site), clock)
    return Auto(inner, settings, own, clock, draft=draft, judge=judge, elsewhere=elsewhere)


def _prices(route: RoutePolicy, site: Site) -> Prices:
    sources = [(part.model, site.parts.prices.source(part)) for part in route.backends if part.weight]

    def of(model: str) -> tuple[Price | None, ...]:
        return tuple([source.of(own or model) if source is not None else None for own, source in sources])

    return of


def _judge(settings: AutoPolicy, site: Site) -> LossJudge:
    if settings.calibration is None:
        # Of a simulation, which has no prompts.
        return ToldLoss()
    from policies.cache.semantic.settings import EncoderPolicy
    from policies.speculation.auto.judge import RouterLoss

    calibration = site.parts.calibrations[site.route.name]
    if calibration.losses is None:
        raise ConfigurationError(
            f'route "{site.route.name}": {settings.calibration} is of an earlier version, which does not say what is '
            "lost: write it anew with `slipstream calibrate`"
        )
    semantics = site.parts.semantics
    assert semantics is not None, "a route asks for its encoder"
    encoder = semantics.encoder(EncoderPolicy(), site.parts.leaves)
    try:
        return RouterLoss(calibration, quality=settings.quality, encoder=encoder)
    except ValueError as error:
        raise ConfigurationError(
            f"{settings.calibration} is damaged: write it anew with `slipstream calibrate`"
        ) from error
