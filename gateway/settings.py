"""The server's own settings, from the environment (`SLIPSTREAM_*`) and the command line; the only reader of either.

What happens to calls is the policy file's matter (`policies/schema.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from backends.config import ByteSize, Duration

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


_BYTES = frozenset(
    {"max_body", "max_bodies", "max_bodies_per_key", "max_bodies_per_tenant", "min_body_rate", "max_answers"}
)


class Settings(BaseSettings):
    """Parsed once at start, then frozen. Every field is an environment variable with the prefix SLIPSTREAM_."""

    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_", frozen=True, extra="forbid", validate_default=False)

    policy: Path | None = Field(None, description="The policy file.")
    host: str = Field(
        "127.0.0.1", description="The address to listen on. Anything but loopback needs `keys` in the policy."
    )
    port: int = Field(8080, ge=0, le=65535, description="The port to listen on; 0 lets the system choose.")
    workers: int = Field(1, ge=1, le=256, description="Processes that share the port.")
    max_body: ByteSize = Field(64 * 1024**2, ge=1024, description="Requests larger than this are answered with 413.")
    max_bodies: ByteSize = Field(
        512 * 1024**2,
        ge=1024,
        description="Request bodies held at once, of each worker; more are answered with 503. Memory grows by up to"
        " three times as much.",
    )
    max_bodies_per_key: ByteSize = Field(
        256 * 1024**2,
        ge=1024,
        description="Of these, the bodies of one key; more are answered with 429. Without keys there is no such share.",
    )
    max_bodies_per_tenant: ByteSize = Field(
        384 * 1024**2,
        ge=1024,
        description="Of these, the bodies of all keys of one tenant; more are answered with 429.",
    )
    max_connections: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Connections of clients open at once, of each worker; further ones get a 503 and are closed.",
    )
    min_body_rate: ByteSize = Field(
        1024,
        ge=0,
        description="Bytes a second that a body has to come with on average, counted behind its first 30 seconds and"
        " without the time that the gateway takes; slower ones are answered with 408. `0B`: no bound but 60 seconds"
        " without a byte.",
    )
    max_answers: ByteSize = Field(
        512 * 1024**2,
        ge=1024,
        description="Answers of upstreams held at once that are no streams, of each worker and those of less than"
        " 64 KiB left out. Where it is spent, a call waits for two seconds and is then answered with 503.",
    )
    drain_delay: Duration = Field(
        0.0, ge=0, le=600, description="On SIGTERM: how long /ready says 503 before the port is closed."
    )
    drain_limit: Duration = Field(
        60.0, ge=0, le=86400, description="On SIGTERM: how long streams in flight may go on after the port is closed."
    )
    reload_interval: Duration = Field(
        1.0,
        gt=0,
        le=3600,
        description="How often the policy file is looked at for changes; with thousands of included files up to"
        " 10 s less often.",
    )
    access_log: Literal["auto", "json", "lines", "off"] = Field(
        "auto",
        description="One line per request on standard output, or none: `json`, or `lines` for people; `auto` is "
        "`lines` on a terminal and `json` elsewhere. `NO_COLOR` takes the colours away.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="For everything but the access log."
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Web origins whose pages may call the gateway, separated by commas; `*` for all."
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Names besides localhost by which a gateway without keys may be called, separated by commas;"
        " `*` for all. It looks at the `host` field, against DNS rebinding.",
    )
    kernels: Literal["auto", "reference"] = Field(
        "auto", description="`reference` sets `kernels: reference` for every backend of type engine."
    )
    error_hook: str | None = Field(
        None,
        pattern=r"^[\w.]+:\w+$",
        description="A function of yours, as module:function. It is called with every error that the gateway logs, a"
        " `logging.LogRecord`, in a thread of its own.",
    )
    tracing: bool = Field(
        False, description="Export OpenTelemetry spans over OTLP/HTTP (OTEL_* variables apply); needs the extra `otel`."
    )

    @property
    def is_public(self) -> bool:
        """Whether others than this machine can reach the port."""
        return self.host not in LOOPBACK_HOSTS

    @field_validator("cors_origins", "allowed_hosts", mode="before")
    @classmethod
    def _split_list(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def environment() -> Mapping[str, str]:
    """The process' environment, for secrets written as env:NAME."""
    return os.environ


def export_settings(settings: Settings) -> None:
    """Put settings that differ from their defaults into the environment, where worker processes find them."""
    for name in settings.model_fields_set:
        value = getattr(settings, name)
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        if name in ("drain_delay", "drain_limit", "reload_interval"):
            text = f"{value}s"
        elif name in _BYTES:
            text = f"{value}B"
        os.environ[f"SLIPSTREAM_{name.upper()}"] = text


def share_metrics_directory(path: str) -> None:
    """Make prometheus_client, imported after this, keep its values in files that all workers share."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = path


def shared_directory() -> Path | None:
    """A folder that lives as long as the workers do together; None where there is one process."""
    directory = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    return Path(directory) if directory is not None else None


def tame_threads(num_threads: int) -> None:
    """Make native thread pools, loaded after this, have `num_threads` and sleep while they wait for one another.

    Left alone, OpenMP's threads spin at each barrier for milliseconds, which stops a model beside a busy neighbour.
    What the environment says of either stays.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(num_threads))
    # Numpy's products are small here and its threads spin: two took twice the processor time for comparing answers.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if not any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ["KMP_BLOCKTIME"] = "0"


def no_color() -> bool:
    """Whether the user of this terminal wants no colours (no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))


def shares_metrics() -> bool:
    """Whether metrics are kept in files shared by several workers."""
    return "PROMETHEUS_MULTIPROC_DIR" in os.environ
