"""Chat templates: the Jinja text that comes with a model, in the environment that transformers gives it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from backends.engine.errors import ModelError, RequestRefused
from backends.engine.model.json_fields import JsonFields

TEMPLATE_FILE = "chat_template.jinja"


class ChatTemplate:
    """A model's templates, compiled; one for chats with tools may stand beside the default one."""

    def __init__(self, sources: Mapping[str, str], where: str, now: Callable[[], datetime]) -> None:
        """`sources` by name, "default" and perhaps "tool_use"; `where` they were found.

        Raises: ModelError for a template that is no Jinja.
        """
        environment = _environment(now)
        self._templates: dict[str, Template] = {}
        for name, source in sources.items():
            try:
                self._templates[name] = environment.from_string(source)
            except TemplateSyntaxError as exc:
                raise ModelError(f"{where}: the chat template cannot be read, line {exc.lineno}: {exc}") from exc
            except (SyntaxError, RecursionError) as exc:
                # Of what the library made of it: a break outside of a loop, parts within parts without end.
                raise ModelError(f"{where}: the chat template cannot be read: {exc}") from exc

    @classmethod
    def from_folder(cls, folder: Path, config: JsonFields | None, now: Callable[[], datetime]) -> ChatTemplate | None:
        """The template of its own file, or else that in tokenizer_config.json; None where there is neither.

        Raises: ModelError.
        """
        path = folder / TEMPLATE_FILE
        if path.is_file():
            return cls({"default": _read(path)}, str(path), now)
        if config is None or "chat_template" not in config:
            return None
        given = config.raw("chat_template")
        if isinstance(given, str):
            return cls({"default": given}, config.where, now)
        try:
            sources = {str(entry["name"]): str(entry["template"]) for entry in given}
        except (TypeError, KeyError) as exc:
            raise config.invalid("chat_template", "a template or a list of named ones") from exc
        return cls(sources, config.where, now)

    def render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, variables: Mapping[str, Any]
    ) -> str:
        """The text of a chat. Raises: RequestRefused where the template refuses it."""
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        template = self._templates.get(name)
        if template is None:
            raise RequestRefused(f"this model has no chat template named {name!r}", param="messages")
        try:
            return template.render({"documents": None, **variables, "messages": messages, "tools": tools})
        except TemplateError as exc:
            raise RequestRefused(
                f"the model's chat template refuses the chat: {exc.message}", param="messages"
            ) from exc
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as exc:
            # What a template's own expressions raise over messages of a form that it does not expect.
            raise RequestRefused(f"the model's chat template fails on this chat: {exc}", param="messages") from exc


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ModelError(f"{path} cannot be read ({exc}): copy the file again") from exc


class _GenerationBlock(Extension):
    """{% generation %} marks what the assistant wrote, for training; here it is as if it were not there."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own would escape what is special in HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
