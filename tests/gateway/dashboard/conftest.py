"""The databases of the ledger's tests."""

from __future__ import annotations

from tests.gateway.ledger.conftest import connect, postgres

__all__ = ["connect", "postgres"]
