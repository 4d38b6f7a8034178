"""What rounding costs: exact answers of the embedded target on held-out prompts, through the engine, form by form.

`python -m backends.engine.demo_models.quality --count 480`
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from transformers import AutoTokenizer

from backends.engine.demo_models.generator import Conversation
from backends.engine.demo_models.score import SCORE_SEED, held_out_set
from backends.engine.demo_models.tokenizer import render
from backends.engine.engine import Engine
from backends.engine.options import EngineOptions, KVDType, Quantization
from backends.engine.request import Event, Request, SamplingParams

TARGET = Path(__file__).parent / "target"
FORMS: dict[str, tuple[Quantization | None, KVDType]] = {
    "as it is": (None, "auto"),
    "int8": ("int8", "auto"),
    "w8a8": ("w8a8", "auto"),
    "fp8": ("fp8", "auto"),
    "int4": ("int4", "auto"),
    "nf4": ("nf4", "auto"),
    "kv int8": (None, "int8"),
    "kv fp8": (None, "fp8"),
}
"""Names of the forms: what weights, and what keys and values are rounded to."""
_LONGEST_ANSWER_TOKENS = 320


def exact_share(folder: Path, form: str, *, count: int, seed: int = SCORE_SEED, threads: int | None = None) -> float:
    """The share 0..1 of `count` held-out prompts that the folder's model answers word for word, greedily."""
    asked = held_out_set(count, seed)
    answers = greedy_engine_answers(folder, asked, form=form, threads=threads)
    expected = [conversation.turns[-1].answer for conversation in asked]
    return sum(answer == right for answer, right in zip(answers, expected, strict=True)) / count


def greedy_engine_answers(
    folder: Path, conversations: Sequence[Conversation], *, form: str = "as it is", threads: int | None = None
) -> list[str]:
    """The greedy answer to each conversation's last prompt through the engine, without outer white space."""
    quantization, kv_dtype = FORMS[form]
    options = EngineOptions(
        model=folder, quantization=quantization, kv_dtype=kv_dtype, device="cpu", speculate="off", threads=threads
    )
    prompts = AutoTokenizer.from_pretrained(folder)
    params = SamplingParams(temperature=0.0, max_tokens=_LONGEST_ANSWER_TOKENS)
    requests = [
        Request(
            id=str(number),
            prompt=tuple(prompts.encode(render(prompts, conversation, add_generation_prompt=True))),
            params=params,
        )
        for number, conversation in enumerate(conversations)
    ]
    return [answer.strip() for answer in _answers(options, requests)]


def _answers(options: EngineOptions, requests: list[Request]) -> list[str]:
    engine = Engine(options)
    engine.start()
    events: SimpleQueue[list[Event]] = SimpleQueue()
    try:
        for request in requests:
            engine.submit(request, events.put)
        texts = {request.id: "" for request in requests}
        waiting = len(requests)
        while waiting:
            for event in events.get():
                texts[event.request_id] += event.text
                if event.error is not None:
                    raise event.error
                waiting -= event.is_last
        return list(texts.values())
    finally:
        engine.close()


def main(arguments: list[str] | None = None) -> None:
    """Writes a line a form: the share, and how many points it lies from the model as it is."""
    parser = argparse.ArgumentParser(description="Exact answers of a model folder by what it is rounded to.")
    parser.add_argument("folder", type=Path, nargs="?", default=TARGET)
    parser.add_argument("--count", type=int, default=480)
    parser.add_argument("--seed", type=int, default=SCORE_SEED)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--form", dest="forms", choices=FORMS, action="append", help="only this; may be repeated")
    options = parser.parse_args(arguments)
    first: float | None = None
    for form in options.forms or FORMS:
        share = exact_share(options.folder, form, count=options.count, seed=options.seed, threads=options.threads)
        first = share if first is None else first
        sys.stdout.write(f"{form:10} {share:7.2%} {100 * (share - first):+6.2f} points\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
