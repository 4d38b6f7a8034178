"""A backend that answers as slowly as a real one: a simulated replica with continuous batching, but without a model.

With the gateway's clock it is a server to try a policy with. With a virtual clock `slipstream simulate` uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from pydantic import Field, model_validator

from backends.clock import Clock
from backends.config import Config
from backends.errors import ConnectFailed, ContextLengthExceeded, UpstreamCut, UpstreamError
from backends.header_names import NO_HEADERS
from backends.protocol import Call, Capabilities, Reply, Statistics
from backends.registry import Kind
from backends.scripted.facts_tap import FactsTap
from backends.simulation.answers import OPERATIONS, SimulatedAnswer, read_sizes
from backends.simulation.latency import ReplicaStepTime
from backends.simulation.replica_driver import ReplicaDriver, SimulatedCall
from backends.simulation.simulated_replica import ReplicaModel, ReplicaRequest, SimulatedReplica
from backends.stream import Stream


class SimulatedConfig(Config):
    """Settings of `type: simulated`. The defaults are an 8B model in bf16 on one H200."""

    speed: float = Field(1.0, gt=0, le=1000, description="Divides every time: 0.5 is a replica at half speed.")
    kv_tokens: int = Field(
        800_000, ge=1024, le=10**10, description="Room for keys and values, of running requests and of cached prefixes."
    )
    host_kv_tokens: int = Field(
        0, ge=0, le=10**11, description="Room in the host's memory for cached prefixes that no longer fit."
    )
    max_sequences: int = Field(256, ge=1, le=65536, description="Answers that one step can hold.")
    chunk_tokens: int = Field(2048, ge=16, le=10**6, description="The most tokens of one step, prompts in chunks.")
    block_tokens: int = Field(512, ge=1, le=65536, description="Tokens of one block of the prefix cache.")
    output_tokens: int = Field(
        256, ge=1, le=10**6, description="How long answers are, where a call neither says nor limits it."
    )
    tokens_per_event: int = Field(
        1,
        ge=0,
        le=10**6,
        description="Tokens in one event of a stream; 0 puts all but the first one into one event at the end, which is "
        "cheap to simulate.",
    )
    base_us: float = Field(1500.0, ge=0, description="Microseconds that every step takes.")
    weights_us: float = Field(4600.0, ge=0, description="Reading the weights: a step's work takes no less than this.")
    linear_us: float = Field(3000.0, ge=0, description="The fixed part of a step's work.")
    token_us: float = Field(20.1, gt=0, description="The work of each token of a step.")
    prefill_attention_ns: float = Field(0.953, ge=0, description="Each pair of a new token and one before it.")
    decode_context_ns: float = Field(35.4, ge=0, description="Each token in the context of a sequence that decodes.")
    sequence_us: float = Field(6.0, ge=0, description="Each sequence of a step.")
    host_token_us: float = Field(2.6, ge=0, description="Copying a cached token from the host's memory.")
    overhead_us: float = Field(
        0.0, ge=0, le=6e7, description="Microseconds on the way to the replica: networks, a tokenizer."
    )

    @model_validator(mode="after")
    def _has_room_for_a_block(self) -> Self:
        if self.chunk_tokens <= self.max_sequences:
            raise ValueError("chunk_tokens must be more than max_sequences, or prompts would starve")
        return self

    def model(self) -> ReplicaModel:
        """The replica that these settings describe."""
        step = ReplicaStepTime(
            base_s=self.base_us * 1e-6,
            weights_s=self.weights_us * 1e-6,
            linear_s=self.linear_us * 1e-6,
            token_s=self.token_us * 1e-6,
            prefill_attention_s=self.prefill_attention_ns * 1e-9,
            decode_context_s=self.decode_context_ns * 1e-9,
            sequence_s=self.sequence_us * 1e-6,
            host_token_s=self.host_token_us * 1e-6,
            speed=self.speed,
        )
        return ReplicaModel(
            step=step,
            chunk_tokens=self.chunk_tokens,
            max_sequences=self.max_sequences,
            kv_tokens=self.kv_tokens,
            host_kv_tokens=self.host_kv_tokens,
            block_tokens=self.block_tokens,
            max_run=self.tokens_per_event,
        )


class Simulated:
    """Answers calls at the times at which a replica of the configured speed would.

    Four characters of a prompt are one token, and prompts with the same beginning share cached blocks. Two fields of a
    call exist for this backend only: `output_tokens`, the length of the answer within `max_tokens` (by default that of
    the settings), and `cached_tokens`, how many of the prompt's tokens are cached at least.
    """

    def __init__(self, name: str, config: SimulatedConfig, clock: Clock) -> None:
        self._name = name
        self._config = config
        self._clock = clock
        self._capabilities = Capabilities(
            operations=OPERATIONS, max_context_tokens=config.kv_tokens, headers=NO_HEADERS
        )
        self._driver = ReplicaDriver(
            SimulatedReplica(config.model()), clock, sees_every_step=config.tokens_per_event > 0
        )
        self._sent = 0
        self._failed = 0

    @property
    def name(self) -> str:
        """The configured name."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """Chat and completions."""
        return self._capabilities

    async def open(self) -> None:
        """Does nothing: there is nothing to acquire."""

    async def aclose(self) -> None:
        """End every call in flight with UpstreamCut and refuse new ones. Safe to call twice."""
        await self._driver.aclose()

    def statistics(self) -> Statistics:
        """A snapshot of the counters; `failed` counts calls that ended in an UpstreamError."""
        return Statistics(in_flight=self._driver.in_flight, sent=self._sent, failed=self._failed)

    async def send(self, call: Call) -> Reply:
        """Answer when the first token of a stream, or the last one of any other answer, is computed.

        Raises: UpstreamError if a time limit of the call is reached or the backend is closed; InvalidRequest,
        ContextLengthExceeded and UnknownPath for a call that it cannot answer.
        """
        self._sent += 1
        config = self._config
        sizes = read_sizes(call, output_tokens=config.output_tokens, block_tokens=config.block_tokens)
        request = ReplicaRequest(sizes.prompt_tokens, sizes.output_tokens, sizes.blocks, sizes.cached_tokens)
        room = config.kv_tokens
        if request.prompt_tokens + request.output_tokens > room:
            needed = f"{request.prompt_tokens} tokens and {request.output_tokens} to answer"
            raise ContextLengthExceeded(f"this model's maximum context length is {room} tokens, not {needed}")
        answer = SimulatedAnswer(call, sizes, number=self._sent, created=int(self._clock.wall()))
        call.facts.sent_at = self._clock.now()
        if config.overhead_us:
            await self._clock.sleep(config.overhead_us * 1e-6)
        if self._driver.is_closed:
            self._failed += 1
            raise ConnectFailed(f"backend {self._name} is closed")
        simulated = SimulatedCall(self._driver, call, request)
        try:
            if call.stream:
                return await self._stream(call, simulated, answer)
            await simulated.wait_for(request.output_tokens)
        except UpstreamError:
            self._failed += 1
            raise
        finally:
            if not call.stream:
                simulated.end()
        call.facts.first_token_at = self._clock.now()
        call.facts.usage = answer.usage(request.cached_tokens)
        return Reply(200, [(b"content-type", b"application/json")], body=answer.body(request.cached_tokens))

    async def _stream(self, call: Call, simulated: SimulatedCall, answer: SimulatedAnswer) -> Reply:
        events = _Events(simulated, answer, self._config.tokens_per_event, self._count_failure)
        try:
            first = await events.first()
        except BaseException:
            simulated.end()
            raise
        call.facts.first_token_at = self._clock.now()
        tap = FactsTap(call.facts, lambda: answer.usage(simulated.request.cached_tokens))
        stream = Stream(events, [tap], first=first)
        return Reply(200, [(b"content-type", b"text/event-stream; charset=utf-8")], stream=stream)

    def _count_failure(self) -> None:
        self._failed += 1


class _Events:
    """The source of one stream. A read waits for the tokens of the next event; the event has all that are computed."""

    def __init__(
        self, simulated: SimulatedCall, answer: SimulatedAnswer, tokens_per_event: int, failed: Callable[[], None]
    ) -> None:
        self._call = simulated
        self._answer = answer
        self._tokens_per_event = tokens_per_event or simulated.request.output_tokens
        self._failed = failed
        self._num_sent = 0
        self._is_closed = False

    async def first(self) -> bytes:
        """The first event, before the stream is returned; the caller counts a failure."""
        return await self._next(1)

    async def read(self) -> bytes:
        """The next event, b"" at the end."""
        if self._is_closed:
            raise UpstreamCut("the stream is closed")
        left = self._call.request.output_tokens - self._num_sent
        if not left:
            return b""
        try:
            return await self._next(min(self._tokens_per_event, left))
        except UpstreamError:
            self._failed()
            raise

    async def aclose(self) -> None:
        """End the call."""
        self._is_closed = True
        self._call.end()

    async def _next(self, num_tokens: int) -> bytes:
        sent = self._num_sent
        available = await self._call.wait_for(sent + num_tokens)
        self._num_sent = available
        event = self._answer.event(available - sent, is_first=sent == 0)
        if available == self._call.request.output_tokens:
            event += self._answer.last_events(self._call.request.cached_tokens)
        return event


KIND = Kind(config=SimulatedConfig, build=Simulated)
