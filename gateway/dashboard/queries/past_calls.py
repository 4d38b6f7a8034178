"""The newest calls that a backend or the exact cache has answered, as far as another policy can be tried on them."""

from __future__ import annotations

from gateway.dashboard.policy.job import PastCall
from gateway.ledger.schema import quoted
from gateway.sql.database import Transaction

_MOST = 3000
"""The times that backends take are read off fewer than these, and a minute is enough to replay them."""


def past_calls(transaction: Transaction, since_us: int) -> list[PastCall]:
    """Of everybody. What the semantic cache has answered is not among them: what it was like is not known."""
    found = transaction.fetch(
        f"SELECT {quoted(PastCall.__struct_fields__)} FROM calls WHERE at_us >= ? AND part = 0 AND kind = 'call' "
        "AND status < 400 AND \"end\" = 'clean' AND (backend <> '' OR cache IN ('hit', 'joined')) "
        "AND input_tokens > 0 AND output_tokens > 0 "
        "ORDER BY at_us DESC LIMIT ?",
        (since_us, _MOST),
    )
    return [PastCall(*row) for row in found]
