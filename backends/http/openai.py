"""`type: openai`: any server that speaks OpenAI's API. Bytes go through as they came unless a setting asks for more.

Called by a route's pool. What differs between servers is data, in `presets.yaml`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from backends.answer_budget import HeldAnswer
from backends.clock import Clock
from backends.drafts.predicting import send_predicted
from backends.drafts.prediction import TakenPredictions
from backends.drafts.push import DRAFT_HEADER, DRAFT_PATH, Draft, DraftsBy
from backends.drafts.rounds import SESSION_HEADER, VERIFY_PATH
from backends.errors import FirstTokenTimeout, StreamStalled, UnknownObject, UpstreamCut, UpstreamGarbage
from backends.header_names import HeaderNames
from backends.headers import end_to_end, with_defaults
from backends.health import HealthConfig
from backends.http.continuing import BEHIND, ContinuesBy, with_beginning, without_marks
from backends.http.error_reply import ErrorReplies, called_json, is_error_alone
from backends.http.keyed_wire import KeyedWire
from backends.http.metering.meter import MeteredAnswer, StreamMeter, error_of, model_of, said, told_by
from backends.http.metering.passed_meter import passed_taps
from backends.http.openai_settings import OpenAIConfig
from backends.http.probe import ask_health
from backends.http.push_draft import push_draft
from backends.http.redact import Redactor
from backends.http.splice import ask_for_usage, set_field, with_model
from backends.http.transport import Transport
from backends.http.verify_rounds import REFUSALS, RoundsSource, opening, session_of
from backends.http.wire import TimeLimits, Wire, WireExchange
from backends.kv_events import SALT_FIELD, KvEventsConfig
from backends.operations import Operation
from backends.priorities.asked import is_ahead
from backends.protocol import Call, Capabilities, Headers, Priority, Reply, Statistics
from backends.quotas.build import build_keys
from backends.quotas.told import SHORTEST_NAME, TELLING
from backends.registry import Kind
from backends.resume import RESUME_FIELD, Continues
from backends.sse import event_data, split_events
from backends.stream import Stream
from backends.untrusted import MAX_TEXT_CHARS, FieldReader

_MAX_ERROR_BYTES = 1024**2
_NO_LIMIT_S = float("inf")
_NO_ROUNDS_FOR_S = 300.0
"""After an upstream has said that it has no sessions."""
_AGENT: Headers = [(b"user-agent", b"slipstream")]
_COUNTED_HEADERS: Headers = [(b"content-type", b"application/json"), (b"accept-encoding", b"identity")]
_OF_CONTENT = (
    *("accept", "accept-encoding", "content-type", "content-encoding", "range"),
    *("if-range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since"),
)
"""Of calls that only pass through, whose answers nobody shares."""
_CONDITIONS = frozenset({b"if-none-match", b"if-modified-since"})
_read_answer = FieldReader(MeteredAnswer)


class OpenAIBackend:
    """An OpenAI-compatible upstream over HTTP."""

    def __init__(self, name: str, config: OpenAIConfig, clock: Clock, wire: Wire) -> None:
        self.name = name
        own = [(name.lower().encode("ascii"), value.encode("latin-1")) for name, value in config.headers.items()]
        self.keys = build_keys(
            name,
            config.keys,
            config.quota,
            partial(_presented, config),
            clock,
            has_choice=config.api_keys is not None,
            shares_objects=config.shares_objects,
        )
        self._keyed = KeyedWire(wire, self.keys, clock) if self.keys.is_kept else None
        own_or_key = [*own, *self.keys.all[0].fields]
        if self._keyed is None:
            own = own_or_key
        # Bodies that are read are JSON whatever clients call it; answers are read for their usage.
        replaced = [name for name, _ in with_defaults(own_or_key, _COUNTED_HEADERS)]
        self._taken = HeaderNames(config.forward_headers, replaced=replaced)
        self._passed = HeaderNames([*config.forward_headers, *_OF_CONTENT], replaced=[name for name, _ in own_or_key])
        agent = [] if self._taken.taken(_AGENT) else _AGENT
        self._fixed_headers = with_defaults(own, agent)
        self._counted_headers = with_defaults(with_defaults(own, _COUNTED_HEADERS), agent)
        able = frozenset[Continues]() if config.continues is None else frozenset({BEHIND[config.continues]})
        self.capabilities = Capabilities(operations=frozenset(Operation), headers=self._taken, continues=able)
        self._config = config
        self._clock = clock
        self._wire = wire
        base = config.base_url.split("/", 3)
        self._root_paths = frozenset(config.root_paths)
        self._base_path = f"/{base[3]}".encode("ascii") if len(base) > 3 else b""
        self._predictions = TakenPredictions()
        self._redactor = Redactor(config.base_url, [each.key for each in config.keys], config.headers)
        self._conceal = self._redactor.data
        self._errors = ErrorReplies(name, self._redactor, clock)
        self._by_rounds: dict[str, RoundsSource] = {}
        self._no_rounds_until = 0.0

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
    def kv_events(self) -> KvEventsConfig | None:
        """Where its engine tells what it keeps of prompts."""
        return self._config.kv_events

    @property
    def health(self) -> HealthConfig | None:
        """How it wants to be asked whether it works."""
        return self._config.health

    async def check_health(self) -> None:
        """See `Probed.check_health`."""
        assert self._config.health is not None, "nobody asks who is not to be asked"
        key = self.keys.first().fields if self._keyed is not None else ()
        await ask_health(self._wire, self._config.health, [*self._fixed_headers, *key], self._clock)

    def is_writing(self, answer_id: str) -> bool:
        """Answers of an upstream are not of this process."""
        return False

    async def push(self, draft: Draft, *, tenant: str, key_id: str) -> None:
        """See `Pushable`; whose answer it is the upstream knows by our key."""
        target = self._base_path + DRAFT_PATH.encode("ascii")
        await push_draft(self._wire, target, self._counted_headers, draft, self._clock)

    async def verify(self, draft: Draft, *, tenant: str, key_id: str, alone: bool = False) -> None:
        """See `Verifier.verify`; whose answer it is the upstream knows by our key."""
        source = self._by_rounds.get(draft.id)
        if source is None:
            raise UnknownObject("there is no such answer, or not any more")
        await source.verify(draft, alone=alone)

    async def send(self, call: Call) -> Reply:
        """Pass the call on.

        Raises: as `Wire.send`, and UpstreamExhausted, UpstreamRejectedKey, UpstreamGarbage, UpstreamCut,
        FirstTokenTimeout.
        """
        send, taken = self._send, self._predictions
        return await (send(call) if call.predicted is None else send_predicted(call, taken, send))

    async def _send(self, call: Call) -> Reply:
        facts, timeouts = call.facts, call.timeouts
        facts.sent_at = self._clock.now()
        facts.conceal = self._conceal
        limits = TimeLimits(
            connect_s=timeouts.connect_s,
            first_byte_s=timeouts.first_token_s if call.stream else _NO_LIMIT_S,
            idle_s=timeouts.first_token_s if call.stream else timeouts.stream_idle_s,
            deadline=call.deadline,
        )
        base = self._base_path if call.path not in self._root_paths else self._base_path.removesuffix(b"/v1")
        target = base + call.path.encode("ascii")
        if call.query:
            target += b"?" + call.query.encode("ascii")
        headers, body = self._headers(call), self._body(call)
        exchange = await self._open_session(call, headers, body, limits) if call.by_rounds else None
        if exchange is not None:
            pass
        elif self._keyed is None:
            exchange = await self._wire.send(call.method, target, headers, body, limits)
        else:
            exchange = await self._keyed.send(call, target, headers, body, limits)
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

    async def _open_session(
        self, call: Call, headers: Sequence[tuple[bytes, bytes]], body: bytes, limits: TimeLimits
    ) -> WireExchange | None:
        """The first reply of a session, or its error; None where the upstream has no sessions, or not for us."""
        if self._keyed is not None or self._clock.now() < self._no_rounds_until:
            return None
        target = self._base_path + VERIFY_PATH.encode("ascii")
        exchange = await self._wire.send("POST", target, headers, opening(call, body), limits)
        if exchange.status not in REFUSALS:
            return exchange
        try:
            refusal = await exchange.body(_MAX_ERROR_BYTES)
        finally:
            await exchange.aclose()
        if b"model_not_found" not in refusal:
            self._no_rounds_until = self._clock.now() + _NO_ROUNDS_FOR_S
        return None

    def _headers(self, call: Call) -> Sequence[tuple[bytes, bytes]]:
        if call.operation.traits.is_understood:
            headers = [*self._counted_headers, *self._taken.travelling(call.headers)]
        else:
            headers = [*self._fixed_headers, *self._passed.travelling(call.headers)]
        if call.request_id:
            headers.append((b"x-request-id", call.request_id.encode("latin-1")))
        if call.drafts is DraftsBy.GATEWAY and self._keyed is None:
            # An answer takes drafts of the key only that it was asked with.
            headers.append((DRAFT_HEADER, b"1"))
        return headers

    def _body(self, call: Call) -> bytes:
        raw, body = call.raw, call.body
        if body is None:
            return raw if call.model_at is None else with_model(raw, call.model_at, call.model)
        if call.resume is not None and (continues := self._continues(call)) is not None:
            raw = with_beginning(raw, body, call.resume, continues)
        elif RESUME_FIELD in body and self._config.continues != "slipstream":
            raw, body = without_marks(body)
        if call.model and call.model != body.get("model"):
            raw = set_field(raw, body, "model", call.model)
        may_be_ahead = "priority" not in body or call.priority is Priority.HIGH
        if not may_be_ahead and is_ahead(body["priority"], self._config.first_priority):
            raw = set_field(raw, body, "priority", 0)
        traits = call.operation.traits
        if call.stream and not call.include_usage and self._config.stream_usage and traits.has_choices:
            raw = ask_for_usage(raw, body)
        if call.prompt_cache_key and traits.takes_prompt_cache_key and body.get("prompt_cache_key") is None:
            raw = set_field(raw, body, "prompt_cache_key", call.prompt_cache_key)
        if self._config.kv_events is not None and traits.writes_text:
            salt = self._config.kv_events.salt(call)
            if salt and salt != body.get(SALT_FIELD):
                raw = set_field(raw, body, SALT_FIELD, salt)
        return raw

    def _continues(self, call: Call) -> ContinuesBy | None:
        """How the upstream is asked to go on. Whoever has had a session does that as a slipstream."""
        has_begun = call.resume is not None and bool(call.resume.begun.tokens)
        return "slipstream" if call.by_rounds and has_begun else self._config.continues

    async def _reply(self, call: Call, exchange: WireExchange, held: HeldAnswer) -> Reply:
        status = exchange.status
        upstream_headers = self._redactor.answer_fields(exchange.headers)
        content_type = b""
        is_coded = tells_quota = False
        for name, value in upstream_headers:
            if name == b"content-type":
                content_type = value
            elif name == b"content-encoding":
                is_coded = True
            elif name == b"x-request-id":
                call.facts.upstream_request_id = value[:MAX_TEXT_CHARS].decode("latin-1")
            elif len(name) >= SHORTEST_NAME and name in TELLING:
                tells_quota = True
        if tells_quota and self._keyed is None:
            self.keys.note(self.keys.all[0], call.model, upstream_headers)
        headers = end_to_end(upstream_headers)
        if (call.method == "HEAD" and 400 <= status != 401) or (status == 304 and _asks_for_changes(call)):
            # It has no body that could be put into a shape.
            return Reply(status, headers, body=b"")
        if status >= 300:
            body = await exchange.body(_MAX_ERROR_BYTES, held)
            return self._errors.of_answer(status, headers, body)
        if content_type.startswith(b"text/event-stream") and call.method != "HEAD":
            return await self._stream_reply(call, exchange, headers, is_coded=is_coded)
        if not call.operation.traits.is_understood:
            exchange.idle_s = call.timeouts.stream_idle_s
            taps = passed_taps(call, content_type, is_coded=is_coded)
            return Reply(status, headers, stream=Stream(exchange, taps))
        if b"json" not in content_type:
            headers = called_json(headers)
        return await self._whole_reply(call, exchange, headers, held, is_coded=is_coded)

    async def _whole_reply(
        self, call: Call, exchange: WireExchange, headers: Headers, held: HeldAnswer, *, is_coded: bool
    ) -> Reply:
        body = await exchange.body(self._config.max_answer, held)
        call.facts.first_token_at = self._clock.now()
        if is_coded:
            return Reply(exchange.status, headers, body=body)
        try:
            answer = _read_answer(body)
        except msgspec.DecodeError:
            raise UpstreamGarbage(
                f'the upstream "{self.name}" answered with something that is not a JSON object'
            ) from None
        error = said(answer.error)
        if error is not None and is_error_alone(body):
            failed = self._errors.of_error(error, headers)
            if failed is not None:
                return failed
        facts = call.facts
        if answer.model:
            facts.upstream_model = answer.model[:MAX_TEXT_CHARS]
        facts.usage, facts.is_usage_partial = told_by(answer, body, call.num_prompts)
        return Reply(exchange.status, headers, body=body)

    async def _stream_reply(self, call: Call, exchange: WireExchange, headers: Headers, *, is_coded: bool) -> Reply:
        first, event = await self._first_event(exchange, call)
        if b'"error"' in event:
            error = error_of(event)
            failed = self._errors.of_error(error, headers) if error is not None else None
            if failed is not None:
                return failed
        call.facts.first_token_at = self._clock.now()
        exchange.idle_s = call.timeouts.stream_idle_s
        if not call.operation.traits.is_understood:
            call.facts.may_quote = True
            taps = passed_taps(call, b"text/event-stream", is_coded=is_coded)
            return Reply(exchange.status, headers, stream=Stream(exchange, taps, first=first, push=exchange.forward))
        model = model_of(event)
        if model:
            call.facts.upstream_model = model[:MAX_TEXT_CHARS]
        responses = call.operation is Operation.RESPONSES
        meter = StreamMeter(call.facts, responses=responses, num_choices=call.num_choices, num_prompts=call.num_prompts)
        if session_of(exchange):
            source = self._rounds_of(call, exchange, first)
            headers = [field for field in headers if field[0] != SESSION_HEADER]
            return Reply(
                exchange.status,
                headers,
                stream=Stream(source, [meter], meter.is_complete, first, is_over=meter.is_over),
            )
        stream = Stream(exchange, [meter], meter.is_complete, first, exchange.forward, meter.is_over, meter.has_failed)
        return Reply(exchange.status, headers, stream=stream)

    def _rounds_of(self, call: Call, first: WireExchange, begun: bytes) -> RoundsSource:
        source = RoundsSource(
            self._wire,
            self._base_path,
            self._headers(call),
            first=first,
            deadline=call.deadline,
            clock=self._clock,
            closed=lambda session: self._by_rounds.pop(session, None),
        )
        source.note(begun)
        self._by_rounds[source.id] = source
        return source

    async def _first_event(self, exchange: WireExchange, call: Call) -> tuple[bytes, bytes]:
        """What has arrived up to the first event with data, and that event.

        Until then nothing is committed: a failure here is a real error answer, or another attempt.
        """
        arrived = b""
        assert call.facts.sent_at is not None, "send has set it"
        give_up_at = call.facts.sent_at + call.timeouts.first_token_s
        try:
            while True:
                # Comments that keep the connection alive are no first token.
                exchange.idle_s = give_up_at - self._clock.now()
                piece = await exchange.read()
                arrived = arrived + piece if arrived else piece
                if b"data:" in arrived:
                    for event in split_events(arrived):
                        if event.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")) and event_data(event) is not None:
                            return arrived, event
                if not piece:
                    raise UpstreamCut(f'the upstream "{self.name}" ended its stream before the first event')
                if len(arrived) > _MAX_ERROR_BYTES:
                    return arrived, b""
        except StreamStalled:
            raise FirstTokenTimeout(f'the upstream "{self.name}" sent no event within timeouts.first_token') from None


def _asks_for_changes(call: Call) -> bool:
    """Whether the client has the answer already, and wants it only where that is another one by now."""
    return not call.operation.traits.is_understood and any(name in _CONDITIONS for name, _ in call.headers)


def _presented(config: OpenAIConfig, key: str) -> Headers:
    """The field that presents a key."""
    scheme = f"{config.auth_scheme} " if config.auth_scheme else ""
    return [(config.auth_header.lower().encode("ascii"), f"{scheme}{key}".encode("latin-1"))]


def _build(name: str, config: OpenAIConfig, clock: Clock) -> OpenAIBackend:
    wire: Wire
    if config.transport is None:
        transport = Transport(clock, max_connections=config.max_connections, idle_expiry_s=config.keep_idle)
        wire = transport.wire(config.base_url, name)
    else:
        # Imported late: most gateways need no httpx.
        from backends.http.foreign import HttpxWire, made_by

        wire = HttpxWire(made_by(name, config.transport), config.base_url, clock)
    return OpenAIBackend(name, config, clock, wire)


KIND = Kind(config=OpenAIConfig, build=_build)
