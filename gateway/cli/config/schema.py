"""`slipstream config schema`: the JSON Schema of policy files, for editors, made from the settings models."""

from __future__ import annotations

import json
from typing import Any, get_args

import click
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from backends.config import NAME_PATTERN, ByteSize, Duration
from backends.registry import Registry
from policies.policy_file.units import Unit, with_unit
from policies.schema import Policy

_UNITS: dict[str, Unit] = {
    get_args(Duration)[2].json_schema["pattern"]: "duration",
    get_args(ByteSize)[2].json_schema["pattern"]: "size",
}


@click.command()
def schema() -> None:
    """Print the JSON Schema of policy files, with the settings of every installed type of backend.

    \b
    Example:
      slipstream config schema > policy.schema.json
    """
    click.echo(schema_text(), nl=False)


def schema_text() -> str:
    """The JSON Schema as the text of docs/policy.schema.json."""
    return json.dumps(policy_schema(Registry()), indent=2, ensure_ascii=False) + "\n"


def policy_schema(registry: Registry) -> dict[str, Any]:
    """The JSON Schema of a policy file, with the settings of every type of backend in the registry."""
    schema = Policy.model_json_schema(schema_generator=_AsWritten)
    definitions = schema["$defs"]
    of_every_backend = definitions.pop("BackendPolicy")["properties"]
    for kind in registry.names():
        template = f"#/$defs/{kind}.{{model}}"
        section = registry.kind(kind).config.model_json_schema(schema_generator=_AsWritten, ref_template=template)
        definitions.update({f"{kind}.{name}": part for name, part in section.pop("$defs", {}).items()})
        section["properties"] = of_every_backend | {"type": {"const": kind}} | section["properties"]
        # Only the type is required: a preset may supply everything else, which a schema cannot know.
        section["required"] = ["type"]
        definitions[f"backend.{kind}"] = section
    schema["properties"]["backends"] |= {
        "patternProperties": {
            NAME_PATTERN: {"oneOf": [{"$ref": f"#/$defs/backend.{kind}"} for kind in registry.names()]}
        },
        "additionalProperties": False,
    }
    schema["properties"]["backends"].pop("propertyNames", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Slipstream policy", **schema}


class _AsWritten(GenerateJsonSchema):
    """Writes defaults with their units, as a policy file does, and leaves out generated titles."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> dict[str, Any]:
        result = super().default_schema(schema)
        default = result.get("default")
        unit = _UNITS.get(result.get("pattern", ""))
        if unit is not None and isinstance(default, int | float):
            result["default"] = with_unit(default, unit)
        elif default is None or (isinstance(default, list) and any(isinstance(item, dict) for item in default)):
            result.pop("default", None)
        return result

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
