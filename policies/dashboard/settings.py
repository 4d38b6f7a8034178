"""The part of the policy file about the dashboard: people who sign in at a provider, by OpenID Connect."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from backends.config import Config, Duration, Name, Secret

CALLBACK = "/dashboard/oidc"
"""Where a provider sends people back to."""


def is_safe(url: str) -> bool:
    """Whether what is sent there cannot be read on the way: over TLS, or to this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    is_here = host == "localhost"
    if not is_here:
        try:
            is_here = ip_address(host).is_loopback
        except ValueError:
            is_here = False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_here))


def _checked(url: str) -> str:
    if not is_safe(url):
        raise ValueError("an https:// URL is needed; http:// only of this machine")
    return url


SafeUrl = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_checked)]
"""Over TLS, or of this machine."""


class OidcRule(Config):
    """What somebody may see who has a certain claim. The first rule that fits decides."""

    claim: str = Field(
        min_length=1,
        max_length=128,
        description="Its name, as in `groups`, `email` or `sub`. `email` counts where `email_verified` is true.",
    )
    value: str = Field(
        min_length=1, max_length=512, description="What it has to be; of a list, what has to be in it. No pattern."
    )
    admin: bool = Field(False, description="As of a key: sees every tenant, the policy and the semantic cache.")
    manages_keys: bool = Field(False, description="As of a key: sees every tenant, makes and revokes stored keys.")
    viewer: bool = Field(False, description="As of a key: sees one tenant.")
    tenant: Name | None = Field(None, description="Which tenant a viewer sees.")
    tenant_of: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="The claim that has the name of the tenant, in place of `tenant`.",
    )

    @model_validator(mode="after")
    def _allows_something(self) -> Self:
        if not (self.admin or self.manages_keys or self.viewer):
            raise ValueError("a rule lets somebody see something: `viewer`, `manages_keys` or `admin`")
        if self.viewer and (self.tenant is None) == (self.tenant_of is None):
            raise ValueError("a viewer sees one tenant: name it as `tenant`, or the claim that has it as `tenant_of`")
        return self


class OidcPolicy(Config):
    """Sign-in at a provider of identities, by OpenID Connect: the code flow with PKCE."""

    issuer: SafeUrl = Field(
        description="The provider, as it calls itself; `/.well-known/openid-configuration` below it says the rest."
    )
    client_id: str = Field(min_length=1, max_length=512, description="What the provider calls this gateway.")
    client_secret: Secret | None = Field(
        None,
        description="As env:NAME or file:PATH; without it the gateway is a public client, and PKCE alone protects.",
    )
    redirect_url: SafeUrl = Field(
        description=f"This gateway's address of `{CALLBACK}`, as the provider knows it: https://HOST{CALLBACK}"
    )
    scopes: tuple[Annotated[str, Field(pattern=r"^[\x21\x23-\x5b\x5d-\x7e]{1,128}$")], ...] = Field(
        ("openid", "email", "profile"), max_length=20, description="What is asked for; `openid` is among them."
    )
    session: Duration = Field(
        3600.0,
        ge=60.0,
        le=43200.0,
        description="How long somebody stays signed in: until then it is not known here who has left.",
    )
    rules: tuple[OidcRule, ...] = Field(
        min_length=1, max_length=200, description="Who may see what; who fits none sees nothing."
    )

    @model_validator(mode="after")
    def _comes_back_here(self) -> Self:
        if urlsplit(self.redirect_url).path != CALLBACK:
            raise ValueError(f"redirect_url ends in {CALLBACK}")
        if "openid" not in self.scopes:
            raise ValueError("scopes: without `openid` there is no identity")
        return self


class DashboardPolicy(Config):
    """Who may look besides those with a key."""

    oidc: OidcPolicy | None = Field(
        None, description="Sign-in at a provider of identities; without it there are keys only. Needs the extra `oidc`."
    )
