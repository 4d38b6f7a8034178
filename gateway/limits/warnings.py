"""Tells that budgets come to their end: a log line, and a POST to the webhook that the policy names."""

from __future__ import annotations

import logging

from gateway.ledger.amounts import usd_text
from policies.background import Background
from policies.limits.limiter import BudgetWarning

_logger = logging.getLogger(__name__)
_TIMEOUT_S = 10.0
_MAX_AT_ONCE = 8


class BudgetWarnings:
    """Of one process: each of several tells for itself."""

    def __init__(self) -> None:
        self._background = Background(_MAX_AT_ONCE)

    def tell(self, warning: BudgetWarning) -> None:
        """Does not wait. What finds no room, for a webhook does not answer, is in the log alone."""
        share = 100 * warning.spent // warning.most
        _logger.warning(
            'the budget "%s" of %s USD has %d %% spent by "%s"%s',
            warning.budget,
            usd_text(warning.most),
            share,
            warning.who,
            f" since {warning.window}" if warning.window else "",
        )
        if warning.webhook is not None:
            self._background.start(_post(warning.webhook, warning))

    async def aclose(self) -> None:
        """Cancel what is still under way."""
        await self._background.aclose()


async def _post(url: str, warning: BudgetWarning) -> None:
    # Most gateways never need it.
    import httpx

    told = {
        "event": "budget_warning",
        "budget": warning.budget,
        "who": warning.who,
        "window": warning.window,
        "spent_usd": usd_text(warning.spent),
        "budget_usd": usd_text(warning.most),
    }
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT_S) as client:
            (await client.post(url, json=told)).raise_for_status()
    except httpx.HTTPError as error:
        # Its words may repeat the URL, which is a secret.
        _logger.warning("the webhook of the budget %s could not be told: %s", warning.budget, type(error).__name__)
