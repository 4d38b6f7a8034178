"""A completion that the gateway asks because of a call, for itself: of a draft, a probe, a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs

from backends.drafts.push import DraftsBy
from backends.operations import Operation
from backends.protocol import Call, Facts


def own_completion(call: Call, body: Mapping[str, Any], facts: Facts, **changed: object) -> Call:
    """That call with a body of its own, and nothing that its client asked for beside it. `changed`: further fields."""
    return structs.replace(
        call,
        operation=Operation.COMPLETION,
        raw=msgspec.json.encode(body),
        body=body,
        stream=body.get("stream", False),
        facts=facts,
        predicted=None,
        resume=None,
        slo=None,
        drafts=DraftsBy.NOBODY,
        by_rounds=False,
        **{"path": "/completions", **changed},
    )
