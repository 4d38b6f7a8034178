"""The part of the policy file that says how a second, smaller backend helps to answer: a section for each `mode`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from backends.config import Config, Name
from backends.drafts.prediction import PredictedBy
from policies.pool.settings import HedgePolicy
from policies.speculation.auto.settings import AutoPolicy


class VerifierPolicy(Config):
    """A model that says whether an answer is right."""

    route: Name = Field(description="The route that is asked.")
    model: str = Field(min_length=1, max_length=256, description="The model to ask that route for.")


class CascadePolicy(Config):
    """Not exact: the draft answers the calls for which that is calibrated to be good enough, the route's backends the
    others. Each answer says in `x-slipstream-stage` who gave it.
    """

    mode: Literal["cascade"] = Field(description="`cascade`: cheap first, and the target where that is not enough.")
    draft: Name = Field(description="Who is asked first: a name under `backends`.")
    model: str | None = Field(
        None, min_length=1, max_length=256, description="The model name to ask it for, instead of the client's."
    )
    accept: Literal["router", "logprob", "verifier"] = Field(
        "router",
        description="What decides: what was learned of prompts, before anybody is asked; the mean log-probability of "
        "the draft's answer; or a verifier's word on it.",
    )
    calibration: str | None = Field(
        None, min_length=1, description="The file that `slipstream calibrate` has written for this pair; required."
    )
    quality: float = Field(
        0.95,
        gt=0,
        le=1,
        description="Right answers that have to be left, as a share of the target's: the lower limit of the estimate "
        "on answers that were held out.",
    )
    verifier: VerifierPolicy | None = Field(None, description="For `accept: verifier`: who says whether it is right.")

    @model_validator(mode="after")
    def _has_what_decides(self) -> Self:
        if self.calibration is None:
            raise ValueError(
                "a cascade needs `calibration`: run `slipstream calibrate --on labelled.jsonl --out FILE`, and name "
                "that file here"
            )
        if (self.verifier is None) == (self.accept == "verifier"):
            raise ValueError("give `verifier` with accept: verifier, and only there")
        return self

    def describe(self) -> str:
        """What it does, in the words of `slipstream explain`."""
        how = {
            "router": "where its calibrated router says so",
            "logprob": "where it is sure enough of its words",
            "verifier": f"where route {self.verifier.route} finds it right" if self.verifier is not None else "",
        }[self.accept]
        return f"cascade, not exact: {self.draft} answers {how}, for {100 * self.quality:g} % of the target's quality"


class RacePolicy(HedgePolicy):
    """Not exact: where the route's backends are late for a call, the draft is asked as well, and the first content of
    an answer wins. Each answer says in `x-slipstream-stage` who gave it.
    """

    mode: Literal["race"] = Field(description="`race`: both, and the first that says something answers.")
    draft: Name = Field(description="Who is asked as well: a name under `backends`.")
    model: str | None = Field(
        None, min_length=1, max_length=256, description="The model name to ask it for, instead of the client's."
    )

    def describe(self) -> str:
        """What it does, in the words of `slipstream explain`."""
        return f"race, not exact: {self.draft} is {super().describe()}"


VerifyMethod = Literal["push", "session", "suffix_logprobs", "probes"]
WRITTEN: tuple[VerifyMethod, ...] = ("suffix_logprobs", "probes")
"""Those by which the gateway writes the answer, from tokens."""
_HOW: dict[VerifyMethod, str] = {
    "push": "by the way",
    "session": "by rounds in a session",
    "suffix_logprobs": "by rounds of scored prompts, if greedy",
    "probes": "by rounds of one-token completions",
}


class ExactPolicy(Config):
    """The target's own answers, sooner: the draft guesses how a running answer goes on, and the target checks guesses
    by the way. For streams of one answer, from backends that take drafts; others are as without.
    """

    mode: Literal["exact"] = Field(description="`exact`: the target's answers, token by token.")
    draft: Name = Field(
        description="Who guesses: a name under `backends`, with the tokenizer of the route's own. It takes prompts of "
        "token ids and tells those of its answers (`return_token_ids`), as `engine` and vLLM do."
    )
    model: str | None = Field(
        None, min_length=1, max_length=256, description="The model name to ask it for, instead of the client's."
    )
    k: int | None = Field(
        None, ge=1, le=64, description="How many tokens it goes ahead at most; without it, as many as the target keeps."
    )
    verify: tuple[VerifyMethod, ...] = Field(
        ("push", "session"),
        min_length=1,
        description="How the target may check guesses, the first that it knows being taken: `push`: onto the running "
        "answer, which waits for none; `session`: by rounds, for which the answer waits; both of a slipstream. "
        "`suffix_logprobs`: by rounds of SGLang, which tells the likeliest token at each place of a guess; for greedy "
        "answers (`temperature: 0`). `probes`: by rounds of one-token completions, of vLLM, a prompt for each guess.",
    )
    tokenizer: str | None = Field(
        None,
        min_length=1,
        description="For `suffix_logprobs` and `probes`: a folder with the `tokenizer.json` of target and draft; "
        "required.",
    )

    @model_validator(mode="after")
    def _has_a_tokenizer(self) -> Self:
        if any(method in WRITTEN for method in self.verify) != (self.tokenizer is not None):
            raise ValueError(
                "give `tokenizer`, the folder of the target's model, with `suffix_logprobs` or `probes` in verify, and "
                "only there"
            )
        return self

    def describe(self) -> str:
        """What it does, in the words of `slipstream explain`."""
        most = "as far as the target keeps" if self.k is None else f"{self.k} tokens ahead at most"
        how = ", else ".join(_HOW[method] for method in self.verify)
        return (
            f"exact: {self.draft} guesses what streams say next, {most}, checked {how}, for as long as that is faster"
        )


class PredictedPolicy(Config):
    """The same answers, sooner, from whoever checks text that is predicted: what an answer will probably repeat is told
    to an `engine`, and to upstreams of type openai whose usage shows that they take it. Needs no second backend.
    """

    mode: Literal["predicted"] = Field(description="`predicted`: the text that an answer will probably repeat.")
    sources: tuple[PredictedBy, ...] = Field(
        ("client", "cache", "file", "turn"),
        min_length=1,
        description="Where texts are taken from, the first that has one: the call's own `prediction`; the semantic "
        "cache's answer to a near question; a file that the call brings, fenced or as a tool's result; the last answer "
        "of the conversation.",
    )
    near: float = Field(
        0.8,
        ge=0.5,
        le=1,
        description="For `cache`: the cosine of two questions from which the stored answer, where it is not served, "
        "is told.",
    )
    least_accepted: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Where fewer of a source's tokens come true than this share, an upstream is not told its texts for "
        "a while, since it may bill the others. An `engine` of this process finds out for itself.",
    )

    def describe(self) -> str:
        """What it does, in the words of `slipstream explain`."""
        texts = {
            "client": "its own prediction",
            "cache": f"the answer to a near question ({self.near:g})",
            "file": "a file in it",
            "turn": "the last answer",
        }
        return "predicted: what an answer will probably repeat, by " + ", ".join(texts[name] for name in self.sources)


AnsweringPolicy = CascadePolicy | RacePolicy | AutoPolicy
"""Where a second backend may give the answer itself."""
SpeculativePolicy = Annotated[
    ExactPolicy | PredictedPolicy | CascadePolicy | RacePolicy | AutoPolicy, Field(discriminator="mode")
]
"""Section `speculative` of a route."""
