"""`type: anthropic`: the Messages API as a backend for chat completions, whole and streamed.

Called by a route's pool. The translation is in `anthropic_request`, `anthropic_reply` and `anthropic_events`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Literal, Self

import msgspec
from pydantic import Field, field_validator, model_validator

from backends.answer_budget import HeldAnswer
from backends.clock import Clock
from backends.config import ByteSize, Config, Duration, Secret
from backends.errors import (
    ConfigurationError,
    FirstTokenTimeout,
    StreamStalled,
    UnknownPath,
    UpstreamErrorEvent,
    UpstreamGarbage,
)
from backends.header_names import HeaderNames
from backends.headers import ForwardedHeader
from backends.health import HealthConfig
from backends.http.anthropic.events import EventTranslator, TranslatedSource
from backends.http.anthropic.reply import (
    OVERLOADED,
    encode_completion,
    error_reply,
    read_counts,
    read_message,
    translate_error,
    translate_headers,
)
from backends.http.anthropic.request import build_request
from backends.http.continuing import changes
from backends.http.keyed_wire import KeyedWire
from backends.http.origin import parse_origin
from backends.http.probe import ask_health
from backends.http.redact import Redactor
from backends.http.transport import Transport
from backends.http.wire import TimeLimits, Wire, WireExchange
from backends.operations import Operation
from backends.protocol import Call, Capabilities, Facts, Headers, Reply, Statistics
from backends.quotas.build import build_keys
from backends.quotas.settings import ApiKeyConfig, ApiKeys, Quota, SharesObjects, check_keys, given_keys
from backends.quotas.told import tells_quota
from backends.registry import Kind
from backends.resume import Continues
from backends.stream import Stream, StreamEnd
from backends.untrusted import MAX_TEXT_CHARS

_MAX_ERROR_BYTES = 1024**2
_NO_LIMIT_S = float("inf")
_JSON = b"application/json"
_EVENT_STREAM = b"text/event-stream"
_KEY_FIELD = b"x-api-key"
_TOKEN = r"^[A-Za-z0-9_.-]+$"

# A stream that begins with one of these has done no work; another attempt may help.
_STATUS_OF_FIRST_ERROR = {"overloaded_error": OVERLOADED, "rate_limit_error": int(HTTPStatus.TOO_MANY_REQUESTS)}


class AnthropicConfig(Config):
    """Settings of `type: anthropic`."""

    base_url: str = Field(
        "https://api.anthropic.com/v1", description="Where its API begins, ending in /v1.", pattern=r"^https?://[^/\s]+"
    )
    api_key: Secret | None = Field(None, description="The key to present to it. Clients' own keys are never sent on.")
    api_keys: ApiKeys = None
    shares_objects: SharesObjects = False
    quota: Quota = None
    version: str = Field(
        "2023-06-01",
        pattern=_TOKEN,
        description="The anthropic-version header. From 2026-10-21 on the API refuses temperature, top_p and top_k.",
    )
    beta: tuple[Annotated[str, Field(pattern=_TOKEN)], ...] = Field(
        (), description="Beta features to ask for, in the anthropic-beta header."
    )
    forward_headers: tuple[ForwardedHeader, ...] = Field(
        (),
        description="Headers of clients that are sent on, by name or with `*`. Callers who differ in one of them share "
        "no cached answer. No others travel but those of traces.",
    )
    continues: Literal["prefill"] | None = Field(
        None,
        description="Whether its models go on with an answer that broke off elsewhere, on routes with `resume`: those "
        "that take a last message of the assistant as a `prefill`. Newer ones refuse it.",
    )
    max_tokens: int = Field(
        4096, ge=1, description="The most tokens of an answer where the client sets no limit; the API demands one."
    )
    max_connections: int = Field(
        1000, ge=1, le=100_000, description="Connections open at once; more calls wait in line."
    )
    keep_idle: Duration | None = Field(
        None,
        gt=0,
        le=3600,
        description="How long an idle connection is kept for another call; shorter than the server keeps it. Without "
        "this, 4s over http and 55s over https.",
    )
    max_answer: ByteSize = Field(64 * 1024**2, ge=1024, description="The largest answer that is read whole.")
    health: HealthConfig | None = Field(None, description="Asking it how it is; without this section nobody does.")

    @field_validator("base_url")
    @classmethod
    def _without_trailing_slash(cls, value: str) -> str:
        if (
            "@" in value.split("/")[2]
            or "?" in value
            or "#" in value
            or not value.isascii()
            or value.split() != [value]
        ):
            raise ValueError("base_url is ASCII and takes no credentials, query or fragment; use api_key")
        try:
            parse_origin(value)
        except ConfigurationError as error:
            raise ValueError(error.message) from error
        return value.rstrip("/")

    @model_validator(mode="after")
    def _keys_are_sendable(self) -> Self:
        check_keys(self.api_key, self.api_keys, self.quota)
        return self

    @property
    def keys(self) -> tuple[ApiKeyConfig, ...]:
        """All that it presents."""
        return given_keys(self.api_key, self.api_keys)


class AnthropicBackend:
    """A Messages API upstream over HTTP, spoken to in OpenAI's words."""

    def __init__(self, name: str, config: AnthropicConfig, clock: Clock, wire: Wire) -> None:
        self.name = name
        self.keys = build_keys(
            name,
            config.keys,
            config.quota,
            lambda key: [(_KEY_FIELD, key.encode("latin-1"))],
            clock,
            has_choice=config.api_keys is not None,
            shares_objects=config.shares_objects,
        )
        self._keyed = KeyedWire(wire, self.keys, clock) if self.keys.is_kept else None
        fixed = _fixed_headers(config)
        with_key = [*fixed, *self.keys.all[0].fields]
        self._fixed_headers = with_key if self._keyed is None else fixed
        replaced = [name for name, _ in with_key]
        self._taken = HeaderNames(config.forward_headers, replaced=replaced)
        able = frozenset[Continues]({"text"} if config.continues else ())
        self.capabilities = Capabilities(operations=frozenset({Operation.CHAT}), headers=self._taken, continues=able)
        self._config = config
        self._clock = clock
        self._wire = wire
        base = config.base_url.split("/", 3)
        self._target = (f"/{base[3]}/messages" if len(base) > 3 else "/messages").encode("ascii")
        self._redactor = Redactor(config.base_url, [each.key for each in config.keys], {})

    async def open(self) -> None:
        """Nothing is connected before the first call."""
        await self._wire.open()

    async def aclose(self) -> None:
        """Close every connection."""
        await self._wire.aclose()

    def statistics(self) -> Statistics:
        """Calls and connections."""
        return self._wire.statistics()

    @property
    def health(self) -> HealthConfig | None:
        """How it wants to be asked whether it works."""
        return self._config.health

    async def check_health(self) -> None:
        """See `Probed.check_health`."""
        assert self._config.health is not None, "nobody asks who is not to be asked"
        key = self.keys.first().fields if self._keyed is not None else ()
        await ask_health(self._wire, self._config.health, [*self._fixed_headers, *key], self._clock)

    async def send(self, call: Call) -> Reply:
        """Ask the Messages API, and answer as a chat completion.

        Raises: as `Wire.send`; UnknownPath for any other operation, InvalidRequest for what the Messages API has no
        words for, UpstreamRejectedKey, UpstreamGarbage, UpstreamCut, UpstreamErrorEvent, FirstTokenTimeout.
        """
        if call.operation is not Operation.CHAT:
            raise UnknownPath(
                f'the backend "{self.name}" (type anthropic) answers /chat/completions only, not {call.path}'
            )
        if call.resume is not None and call.body is not None and self._config.continues is not None:
            begun = changes(call.body, call.resume, self._config.continues)
            call = msgspec.structs.replace(call, body={**call.body, **begun})
        body = build_request(call, self._config.max_tokens)
        timeouts = call.timeouts
        limits = TimeLimits(
            connect_s=timeouts.connect_s,
            first_byte_s=timeouts.first_token_s if call.stream else _NO_LIMIT_S,
            idle_s=timeouts.first_token_s if call.stream else timeouts.stream_idle_s,
            deadline=call.deadline,
        )
        call.facts.sent_at = self._clock.now()
        headers = self._headers(call)
        if self._keyed is None:
            exchange = await self._wire.send("POST", self._target, headers, body, limits)
            if tells_quota(exchange.headers):
                self.keys.note(self.keys.all[0], call.model, exchange.headers)
        else:
            exchange = await self._keyed.send(call, self._target, headers, body, limits)
        held = HeldAnswer(call.answers)
        try:
            reply = await self._reply(call, exchange, held)
        except BaseException:
            held.release()
            await exchange.aclose()
            raise
        if reply.stream is None:
            held.end_with(reply)
            await exchange.aclose()
        return reply

    def _headers(self, call: Call) -> Headers:
        headers = [*self._fixed_headers, *self._taken.travelling(call.headers)]
        if call.request_id:
            headers.append((b"x-request-id", call.request_id.encode("latin-1")))
        return headers

    async def _reply(self, call: Call, exchange: WireExchange, held: HeldAnswer) -> Reply:
        content_type = b""
        for name, value in self._redactor.answer_fields(exchange.headers):
            if name == b"content-type":
                content_type = value
            elif name == b"request-id":
                call.facts.upstream_request_id = value[:MAX_TEXT_CHARS].decode("latin-1")
        if exchange.status >= HTTPStatus.MULTIPLE_CHOICES:
            body = self._redactor.data(await exchange.body(_MAX_ERROR_BYTES, held))
            return error_reply(self.name, exchange.status, self._reply_headers(exchange, _JSON), body)
        if not call.stream:
            return await self._whole_reply(call, exchange, held)
        if not content_type.startswith(_EVENT_STREAM):
            raise UpstreamGarbage(f'the upstream "{self.name}" was asked for a stream and answered with none')
        return await self._stream_reply(call, exchange)

    async def _whole_reply(self, call: Call, exchange: WireExchange, held: HeldAnswer) -> Reply:
        body = await exchange.body(self._config.max_answer, held)
        facts = call.facts
        facts.first_token_at = self._clock.now()
        message = read_message(self.name, body)
        facts.upstream_model = message.model[:MAX_TEXT_CHARS]
        counts = read_counts(message.usage)
        facts.usage = counts.told()
        facts.is_usage_partial = counts.output_tokens is None
        answer = encode_completion(message, int(self._clock.wall()))
        return Reply(HTTPStatus.OK, self._reply_headers(exchange, _JSON), body=answer)

    async def _stream_reply(self, call: Call, exchange: WireExchange) -> Reply:
        translator = EventTranslator(call.facts, int(self._clock.wall()))
        source = TranslatedSource(exchange, translator)
        assert call.facts.sent_at is not None, "send has set it"
        give_up_at = call.facts.sent_at + call.timeouts.first_token_s
        first = b""
        try:
            # Until the first event nothing is committed: a failure here is a real error answer, or another attempt.
            while not first:
                # Pings are no first token.
                exchange.idle_s = give_up_at - self._clock.now()
                first = await source.read_piece()
        except StreamStalled:
            raise FirstTokenTimeout(f'the upstream "{self.name}" sent no event within timeouts.first_token') from None
        except UpstreamErrorEvent:
            detail = translator.error
            status = _STATUS_OF_FIRST_ERROR.get(detail.type) if detail is not None else None
            if detail is None or status is None:
                raise
            detail.message = self._redactor.text(detail.message)
            return translate_error(status, self._reply_headers(exchange, _JSON), detail)
        call.facts.first_token_at = self._clock.now()
        exchange.idle_s = call.timeouts.stream_idle_s
        end = _RecordEnd(call.facts, translator)
        return Reply(
            HTTPStatus.OK,
            self._reply_headers(exchange, _EVENT_STREAM + b"; charset=utf-8"),
            stream=Stream(source, [end], first=first, is_over=lambda: end.is_over),
        )

    def _reply_headers(self, exchange: WireExchange, content_type: bytes) -> Headers:
        return translate_headers(self._redactor.answer_fields(exchange.headers), content_type, self._clock.wall())


class _RecordEnd:
    """The tap that notes whether the answer has passed whole, and how the stream ended."""

    def __init__(self, facts: Facts, translator: EventTranslator) -> None:
        self._facts = facts
        self._translator = translator
        self.is_over = False
        """Whether `[DONE]` has passed."""

    def feed(self, piece: bytes) -> None:
        """One piece; the last is the one with which the answer is complete."""
        self.is_over = self._translator.is_complete

    def end(self, how: StreamEnd) -> None:
        """The stream has ended."""
        self._facts.stream_end = how


def _fixed_headers(config: AnthropicConfig) -> Headers:
    headers: Headers = [
        (b"content-type", _JSON),
        (b"accept-encoding", b"identity"),
        (b"user-agent", b"slipstream"),
        (b"anthropic-version", config.version.encode("ascii")),
    ]
    if config.beta:
        headers.append((b"anthropic-beta", ",".join(config.beta).encode("ascii")))
    return headers


def _build(name: str, config: AnthropicConfig, clock: Clock) -> AnthropicBackend:
    transport = Transport(clock, max_connections=config.max_connections, idle_expiry_s=config.keep_idle)
    return AnthropicBackend(name, config, clock, transport.wire(config.base_url, name))


KIND = Kind(config=AnthropicConfig, build=_build)
