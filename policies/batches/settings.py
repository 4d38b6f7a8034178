"""The part of the policy file about /v1/batches: where they are kept, how a route answers their lines."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from backends.config import ByteSize, Config, Duration

BatchMode = Literal["calls", "provider"]


class BatchPolicy(Config):
    """How a route answers lines of /v1/batches; its live calls go as always. `provider` alone stands for its mode."""

    mode: BatchMode = Field(
        "calls",
        description="`calls`: each line is a call of the lowest priority. `provider`: lines are collected, across "
        "batches and callers, and sent through the provider's own Batch API at its lower price.",
    )
    at_once: int = Field(8, ge=1, le=1000, description="Of `calls`: lines that are answered at once.")
    collect_for: Duration = Field(
        300.0, gt=0, le=86400, description="Of `provider`: how long lines wait for others to go with them."
    )
    max_requests: int = Field(
        50_000, ge=1, le=100_000, description="Of `provider`: lines of one batch there; that many go at once."
    )
    max_size: ByteSize = Field(
        64 * 1024**2, ge=1024**2, le=200 * 1024**2, description="Of `provider`: bytes of one batch there."
    )
    poll_every: Duration = Field(
        30.0, gt=0, le=3600, description="Of `provider`: how often it is asked whether a batch is done."
    )
    discount: float = Field(
        0.5, ge=0, le=1, description="Of `provider`: what it takes off the backend's `price` for batches."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_mode(cls, values: Any) -> Any:
        return {"mode": values} if isinstance(values, str) else values

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The section, or its mode alone."""
        section = handler.resolve_ref_schema(handler(core_schema))
        return {"anyOf": [{"enum": list(get_args(BatchMode))}, section]}


class BatchesStore(Config):
    """Where /v1/files and /v1/batches keep files, batches and results. The limits are each tenant's."""

    folder: str = Field(min_length=1, description="A folder of a local disk, shared by the workers of one machine.")
    max_file: ByteSize = Field(200 * 1024**2, ge=1024, description="The largest file that may be uploaded.")
    max_files: int = Field(1000, ge=1, le=1_000_000, description="Files of one tenant, results included.")
    max_size: ByteSize = Field(10 * 1024**3, ge=1024, description="All files of one tenant together.")
    max_batches: int = Field(100, ge=1, le=10_000, description="Batches of one tenant that are not done.")
    keep: Duration = Field(
        30 * 86400.0, gt=0, description="How long files, and batches that are done, are kept; then they are deleted."
    )
