"""`slipstream chat`: the command."""

from __future__ import annotations

import sys
from contextlib import closing, suppress

import click

from gateway.cli.chat.talk import ChatError, Talk, Took
from gateway.cli.parameters import KeyReference, gateway_address

_HELP = "/new forgets what was said, /model NAME asks another model, /models lists them, Ctrl-D ends."


@click.command()
@click.argument("prompt", nargs=-1)
@click.option(
    "--url",
    default="http://127.0.0.1:8080",
    show_default=True,
    callback=gateway_address,
    help="The gateway's address.",
)
@click.option("--model", help="Whom to ask.  [default: the first model that the gateway lists]")
@click.option("--key", type=KeyReference(), help="An API key, where the gateway asks for one.")
@click.option("--system", help="A system message.")
def chat(prompt: tuple[str, ...], url: str, model: str | None, key: str | None, system: str | None) -> None:
    """Talk to a gateway; each answer says how fast it was and what it cost.

    With a PROMPT, or one on standard input, there is one answer, which alone goes to standard output.

    \b
    Examples:
      slipstream chat
      slipstream chat --model gpt-5-mini 'What is 12+30?'
      git diff | slipstream chat --system 'Write a commit message.' --key env:OPENAI_API_KEY
    """
    with closing(Talk(url, key, model, system)) as talk:
        try:
            if not talk.model:
                talk.model = _first_model(talk)
            question = " ".join(prompt)
            if not question and not sys.stdin.isatty():
                question = sys.stdin.read().strip()
                if not question:
                    raise click.UsageError("standard input is empty: pipe a question into it, or name one")
            if question:
                _answer(talk, question)
            else:
                _converse(talk, url)
        except ChatError as error:
            raise click.ClickException(_printable(str(error))) from error


def _first_model(talk: Talk) -> str:
    models = talk.models()
    if not models:
        raise ChatError("the gateway lists no model: name one with --model")
    return models[0]


def _converse(talk: Talk, url: str) -> None:
    click.secho(f"{_printable(talk.model)} at {url}. {_HELP}", dim=True, err=True)
    while True:
        try:
            line = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            click.echo(err=True)
            return
        try:
            if line.startswith("/"):
                _command(talk, line)
            elif line:
                _answer(talk, line)
        except ChatError as error:
            click.secho(_printable(str(error)), fg="red", err=True)
        except KeyboardInterrupt:
            # The connection goes, so the gateway calls the answer off.
            click.secho("\nstopped", dim=True, err=True)


def _command(talk: Talk, line: str) -> None:
    word, _, rest = line.partition(" ")
    if word == "/new":
        talk.forget()
    elif word == "/model" and rest.strip():
        talk.model = rest.strip()
    elif word == "/models":
        click.secho(_printable("\n".join(talk.models())), dim=True, err=True)
    else:
        click.secho(_HELP, dim=True, err=True)


def _answer(talk: Talk, question: str) -> None:
    with closing(talk.ask(question)) as pieces:
        for piece in pieces:
            click.echo(_printable(piece), nl=False)
    click.echo()
    click.secho("; ".join(_facts(talk.took)), dim=True, nl=False, err=True)
    with suppress(KeyboardInterrupt):
        cost = talk.cost()
        if cost is not None:
            click.secho(f"; {_printable(cost)}", dim=True, nl=False, err=True)
    click.echo(err=True)


def _facts(took: Took) -> list[str]:
    facts = [f"{took.total_s:.2f} s"]
    if took.first_s is not None:
        facts[0] += f", first token after {took.first_s:.2f} s"
    if took.input_tokens is not None:
        facts.append(f"{took.input_tokens} + {took.output_tokens} tokens")
    if (speed := took.tokens_a_second) is not None:
        facts.append(f"{speed:.0f} tokens a second")
    if took.cache:
        facts.append(f"cache: {_printable(took.cache)}")
    if took.finish not in (None, "stop"):
        facts.append(f"ended: {_printable(str(took.finish))}")
    return facts


def _printable(text: str) -> str:
    """Without what would command a terminal; lines and tabs stay."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
