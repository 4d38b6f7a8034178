"""From pydantic's complaints to messages that people can act on: the value, what is allowed, "did you mean".

A secret's value is never repeated.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from backends.config import NAME_PATTERN
from policies.keys.settings import TAG_PATTERN
from policies.policy_file.locate import Document, Place, Problem
from policies.policy_file.units import Unit, unit_of, variants, with_unit, without_wrapping

_SECRET_KEY = re.compile(r"key$|secret|password|authorization|cookie|token$", re.IGNORECASE)
_QUOTED = re.compile(r"'([^']*)'")
_LONGEST_VALUE = 60
_MAX_LISTED = 20
_MAX_COMPARED = 1000
_WANTED = {
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_PATTERNS = {
    NAME_PATTERN: "a name has 1 to 64 letters, digits and . _ / - and begins with a letter or digit",
    TAG_PATTERN: "a tag has 1 to 64 letters, digits and . _ : / = - and begins with a letter or digit",
    r"^/": "must begin with /",
    r"^https?://[^/\s]+": "must be a URL: http://host... or https://host...",
}


def is_secret_word(key: str) -> bool:
    """Whether something of that name is likely to hold a secret."""
    return _SECRET_KEY.search(key) is not None


def short_value(value: object) -> str:
    """A value as the file has it, on one short line."""
    if isinstance(value, dict):
        return "a mapping" if value else "{}"
    if isinstance(value, list):
        return "a list" if value else "[]"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """` Did you mean "x"?` for the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(islice(known, _MAX_COMPARED)), n=1) if isinstance(word, str) else []
    return f' Did you mean "{near[0]}"?' if near else ""


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that nothing bears."""
    names = list(dict.fromkeys(known))
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    listed = ", ".join(names[:_MAX_LISTED]) or "none"
    return f"no {what} is named {short_value(name)}.{did_you_mean(name, names)} Known: {listed}{more}"


def translate(error: ValidationError, model: type[BaseModel], document: Document, prefix: Place = ()) -> list[Problem]:
    """Each complaint about a section of type `model` that stands at `prefix`, as a problem of the file."""
    problems = []
    for detail in error.errors(include_url=False):
        location = tuple(part for part in detail["loc"] if part != "[key]")
        place = (*prefix, *_written(model, location))
        if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
            place = (*place, detail["ctx"]["discriminator"].strip("'"))
        value = document.value(place)
        if detail["type"] == "too_short" and _size(value) >= detail["ctx"]["min_length"]:
            continue  # it has items enough, and each that does not count has its own problem
        problems.append(document.problem(place, _message(detail, model, location, value)))
    return problems


def _size(value: object) -> int:
    return len(value) if isinstance(value, list | dict) else 0


def _message(detail: Any, model: type[BaseModel], location: Place, value: object) -> str:
    kind = detail["type"]
    if kind in ("extra_forbidden", "missing"):
        section = _declared(model, location[:-1])[0]
        fields = section.model_fields if _is_model(section) else {}
        word = location[-1]
        if kind == "extra_forbidden":
            return f'unknown key "{word}".{did_you_mean(word, fields)} Allowed: {", ".join(fields)}'
        meaning = fields[word].description if word in fields else None
        return "required, but not given" + (f". {meaning}" if meaning else "")
    if kind == "union_tag_not_found":
        return f"required, but not given. Allowed: {', '.join(variants(*_declared(model, location)))}"
    if detail["loc"][-1:] == ("[key]",):
        value = location[-1]
    unit = unit_of(*_declared(model, location))
    demand = _demand(kind, detail.get("ctx", {}), detail["msg"], value, unit)
    if unit == "secret" or (location and is_secret_word(str(location[-1]))):
        return demand
    return f"{short_value(value)} - {demand}"


def _written(model: type[BaseModel], location: Place) -> Place:
    """A place as the file has it: pydantic also names the kind of a section that has several."""
    return tuple(
        part for depth, part in enumerate(location) if part not in variants(*_declared(model, location[:depth]))
    )


def _demand(kind: str, context: dict[str, Any], message: str, value: object, unit: Unit | None) -> str:
    """What the value should have been."""
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        texts = _QUOTED.findall(context["expected"])
        if not texts and isinstance(value, str) and value == context["expected"]:
            return f"must be a number: write {value}, without the quotes"
        return _choice(texts or [context["expected"]], value)
    if kind == "union_tag_invalid":
        return _choice(_QUOTED.findall(context["expected_tags"]), value)
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(context["pattern"], f"must match {context['pattern']}")
    if kind == "too_short":
        return f"at least {context['min_length']} must be given"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"must be {words} {with_unit(context[key], unit)}"
    wanted = _WANTED.get(kind)
    if wanted is None:
        return message.replace("Input should", "must").replace("String should", "must")
    if kind == "string_type" and isinstance(value, int | float):
        return f"{wanted}: put it in quotes"
    return wanted


def _choice(allowed: list[str], value: object) -> str:
    if isinstance(value, int | float) and str(value) in allowed:
        return f'must be text: write "{value}", with the quotes'
    return f"allowed: {', '.join(allowed)}{'.' if (hint := did_you_mean(value, allowed)) else ''}{hint}"


def _is_model(section: Any) -> bool:
    return isinstance(section, type) and issubclass(section, BaseModel)


def _declared(model: type[BaseModel], location: Place) -> tuple[Any, tuple[Any, ...]]:
    """The type and metadata declared at a place within `model`; (None, ()) where that cannot be told."""
    current: Any = model
    metadata: tuple[Any, ...] = ()
    for part in location:
        if part in (kinds := variants(current, metadata)):
            current, metadata = kinds[str(part)], ()
        elif _is_model(current):
            field = current.model_fields.get(part)
            current, inner = without_wrapping(field.annotation) if field is not None else (None, ())
            metadata = (*field.metadata, *inner) if field is not None else ()
        elif get_origin(current) in (tuple, list, dict):
            current, metadata = without_wrapping(get_args(current)[1 if get_origin(current) is dict else 0])
        else:
            return None, ()
    return current, metadata
