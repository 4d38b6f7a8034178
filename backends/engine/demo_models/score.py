"""Exact share on prompts never seen in training, for any Hugging Face folder with a chat template.

`python -m backends.engine.demo_models.score DIR --count 500`
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from backends.engine.demo_models.generator import TASK_NAMES, Conversation, held_out_conversation
from backends.engine.demo_models.tokenizer import render

SCORE_SEED = 20261120
_BATCH = 32
_LONGEST_ANSWER_TOKENS = 320


@dataclass(frozen=True, slots=True)
class Scores:
    """Exact shares, 0..1; `mean` weighs every task alike."""

    count: int
    mean: float
    tasks: dict[str, float]


def score_folder(folder: Path, *, count: int, seed: int = SCORE_SEED) -> Scores:
    """Asks the folder's model `count` held-out prompts, spread evenly over the tasks, and compares greedy answers.

    Weights are computed in float32. An answer is right when its text is, after removal of outer white space.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    asked = held_out_set(count, seed)
    answers = greedy_answers(model, tokenizer, asked)
    right: dict[str, list[bool]] = {task: [] for task in TASK_NAMES}
    for conversation, answer in zip(asked, answers, strict=True):
        right[conversation.task].append(answer == conversation.turns[-1].answer)
    shares = {task: sum(hits) / len(hits) for task, hits in right.items() if hits}
    return Scores(len(asked), sum(shares.values()) / len(shares), shares)


def held_out_set(count: int, seed: int = SCORE_SEED) -> list[Conversation]:
    """`count` different held-out conversations, the tasks in turn."""
    rng = Random(seed)
    found: dict[str, Conversation] = {}
    while len(found) < count:
        conversation = held_out_conversation(rng, TASK_NAMES[len(found) % len(TASK_NAMES)])
        found[json.dumps(conversation.messages())] = conversation
    return list(found.values())


def greedy_answers(model: Any, tokenizer: PreTrainedTokenizerBase, conversations: Sequence[Conversation]) -> list[str]:
    """The greedy answer to each conversation's last prompt, in the order given.

    `model`: a causal model of transformers (whose own types fit none that it loads).
    """
    prompts = [render(tokenizer, conversation, add_generation_prompt=True) for conversation in conversations]
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    answers = [""] * len(prompts)
    for start in range(0, len(order), _BATCH):
        chosen = order[start : start + _BATCH]
        batch = tokenizer(
            [prompts[index] for index in chosen], return_tensors="pt", padding=True, add_special_tokens=False
        )
        with torch.inference_mode():
            output = model.generate(**batch, do_sample=False, max_new_tokens=_LONGEST_ANSWER_TOKENS)
        for index, tokens in zip(chosen, output[:, batch["input_ids"].shape[1] :], strict=True):
            answers[index] = str(tokenizer.decode(tokens, skip_special_tokens=True)).strip()
    return answers


def main(arguments: list[str] | None = None) -> None:
    """Scores one folder and writes the result as JSON."""
    parser = argparse.ArgumentParser(description="Score a model folder on held-out prompts.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=SCORE_SEED)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    scores = score_folder(options.folder, count=options.count, seed=options.seed)
    sys.stdout.write(json.dumps(asdict(scores), indent=2) + "\n")


if __name__ == "__main__":
    main()
