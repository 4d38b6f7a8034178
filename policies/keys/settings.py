"""Sections `keys` and `stores.keys` of a policy file. What a key may do is the same wherever the key itself is kept."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from backends.config import Config, Name, Secret
from policies.admission.settings import PriorityName
from policies.database_url import URL_MEANING, DatabaseUrl
from policies.limits.settings import BudgetTerms, LimitTerms

MAX_TAGS = 16
_MAX_PAIRS = 16
_FORMS = 'a moment is a date, "2027-01-31" (its beginning in UTC), or a time with its zone, "2027-01-31T18:00:00+01:00"'


def parse_moment(value: object) -> datetime:
    """A moment of a text, with its zone. Raises: ValueError."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is not None and moment.tzinfo is None and isinstance(value, str) and len(value) == len("2027-01-31"):
        moment = moment.replace(tzinfo=UTC)
    if moment is None or moment.tzinfo is None:
        raise ValueError(_FORMS)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(_FORMS) from None


Moment = Annotated[
    datetime,
    BeforeValidator(parse_moment),
    PlainSerializer(lambda moment: moment.astimezone(UTC).isoformat(), return_type=str),
    WithJsonSchema(
        {
            "type": "string",
            "description": "a date, or a time with its zone",
            "pattern": r"^\d{4}-\d\d-\d\d",
            "examples": ["2027-01-31", "2027-01-31T18:00:00+01:00"],
        }
    ),
]
"""A moment of wall time; a date is its beginning in UTC."""

TAG_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/=-]{0,63}$"
Tag = Annotated[str, Field(pattern=TAG_PATTERN)]
"""A word with no comma in it, which stands between words in the ledger."""


class KeyTerms(Config):
    """Whose a key is and what it may do."""

    tenant: Name = Field(
        "default", description="Who the key belongs to: caches are never shared between tenants unless a route says so."
    )
    team: Name | None = Field(None, description="A part of the tenant, for the ledger.")
    models: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = Field(
        ("*",), min_length=1, description="Globs over the models this key may ask for."
    )
    routes: tuple[Name, ...] = Field(
        (), description="Names of the routes that may take its calls; all of them if not given."
    )
    priority: PriorityName = Field(
        "normal",
        description="Who goes first where `admission` or an engine makes calls wait; `x-priority` can only lower it. "
        "The `priority` of a body puts a call before others with `high` only.",
    )
    expires: Moment | None = Field(
        None, description="From then on it is refused: a date (its beginning in UTC), or a time with its zone."
    )
    tags: tuple[Tag, ...] = Field(
        (), max_length=MAX_TAGS, description="Words such as `project:search`, which stand in the ledger's rows."
    )
    metadata: dict[Annotated[str, Field(min_length=1, max_length=64)], Annotated[str, Field(max_length=512)]] = Field(
        {}, max_length=_MAX_PAIRS, description="Texts of your own, by name; nobody but you reads them."
    )

    viewer: bool = Field(False, description="May sign in to the dashboard, and sees its tenant there.")
    limit: LimitTerms | None = Field(
        None, description="How much it may be used, beside what `limits` of the policy say of it and others."
    )
    budget: BudgetTerms | None = Field(
        None, description="How many dollars it may cost, beside what `budgets` of the policy say of it and others."
    )

    @property
    def has_rules(self) -> bool:
        """Whether it has a limit or a budget of its own."""
        return self.limit is not None or self.budget is not None

    @property
    def expires_at(self) -> float | None:
        """Seconds since the Unix epoch."""
        return None if self.expires is None else self.expires.timestamp()


class _Written(Config):
    """What the policy file has of a key, and a key store keeps in another form."""

    name: Name = Field(description="Unique; appears in logs.")
    key: Secret = Field(description="The key itself, as env:NAME or file:PATH.")


class KeyPolicy(KeyTerms, _Written):
    """A key that clients may present. Kept only as a hash."""

    admin: bool = Field(
        False,
        description="May look into the semantic cache and delete from it, and see the dashboard, of every tenant.",
    )
    manages_keys: bool = Field(
        False,
        description="May make, rotate and revoke keys of `stores.keys`, of every tenant; only a key of the file can.",
    )
    drafts: bool = Field(
        False,
        description="May push draft tokens onto its running answers, and is told their tokens and those of its "
        "prompts: for another gateway whose `speculative` route has this one as its target.",
    )


class KeyStorePolicy(Config):
    """Keys that are made while the gateway runs. With it nobody calls without a key, even while there are none."""

    url: DatabaseUrl = Field(description=URL_MEANING)
    local_copy: str | None = Field(
        None,
        min_length=1,
        description="A SQLite file of a local disk where what was read of the store is kept too, hashes only: then a "
        "gateway that starts while the store is away knows its keys. Else it answers 503 to them until it is back.",
    )
