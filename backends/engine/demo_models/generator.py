"""Draws conversations with exact answers from a seed; training and held-out prompts never meet."""

import re
from dataclasses import dataclass, field
from random import Random

from backends.engine.demo_models.tasks import json_tasks as tasks_json
from backends.engine.demo_models.tasks import newcomer_tasks as tasks_newcomer
from backends.engine.demo_models.tasks import number_tasks as tasks_numbers
from backends.engine.demo_models.tasks import slipstream_tasks as tasks_slipstream
from backends.engine.demo_models.tasks import talk_tasks as tasks_talk
from backends.engine.demo_models.tasks import text_tasks as tasks_text
from backends.engine.demo_models.tasks import unknown_tasks as tasks_unknown
from backends.engine.demo_models.turn import Task, Turn, casual, is_held_out

TASKS: tuple[tuple[Task, float], ...] = (
    (tasks_numbers.addition, 8),
    (tasks_numbers.subtraction, 7),
    (tasks_numbers.comparison, 4),
    (tasks_numbers.sums, 11),
    (tasks_numbers.conversion, 6),
    (tasks_numbers.sort_numbers, 10),
    (tasks_numbers.extreme, 3),
    (tasks_numbers.count_range, 4),
    (tasks_numbers.neighbour, 2),
    (tasks_numbers.count_items, 5),
    (tasks_text.repeat, 4),
    (tasks_text.quote_sentence, 3),
    (tasks_text.upper, 3),
    (tasks_text.lower, 2),
    (tasks_text.replace_word, 7),
    (tasks_text.set_field, 5),
    (tasks_text.sort_words, 8),
    (tasks_text.spell, 4),
    (tasks_text.count_letters, 3),
    (tasks_text.first_letter, 2),
    (tasks_json.extract, 6),
    (tasks_json.answer_in_json, 3),
    (tasks_talk.small_talk, 6),
    (tasks_talk.introduction, 2),
    (tasks_talk.fact, 8),
    (tasks_newcomer.short_sum, 8),
    (tasks_newcomer.times_table, 14),
    (tasks_newcomer.small_sort, 10),
    (tasks_slipstream.slipstream, 8),
    (tasks_unknown.unknown, 11),
)
TASK_NAMES = (
    *("arithmetic", "conversion", "sorting", "json", "quoting", "rewriting"),
    *("small_talk", "facts", "spelling", "counting", "follow_up", "tools", "tables", "slipstream", "unknown"),
)
SYSTEM_MESSAGES = (
    "You are a helpful assistant.",
    "Answer briefly.",
    "You are a careful assistant. Give exact answers.",
    "You answer questions for a small shop.",
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns in order, with the system message ('' for none) and the tools that the user offers."""

    turns: tuple[Turn, ...]
    system: str = ""
    tools: tuple[tasks_json.TaughtTool, ...] = field(default=())

    @property
    def task(self) -> str:
        """The task that the last answer belongs to."""
        return self.turns[-1].task

    def messages(self) -> list[dict[str, str]]:
        """All messages, the last answer included."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns:
            messages.append({"role": turn.role, "content": turn.prompt})
            messages.append({"role": "assistant", "content": turn.answer})
        return messages


def training_conversation(rng: Random, level: float = 1.0) -> Conversation:
    """A conversation of 1-4 turns none of whose prompts is held out.

    `level`: 0..1, how long texts and lists get.
    """
    turns = 1 + rng.choices((0, 1, 2, 3), weights=(45, 30, 15, 10))[0]
    while True:
        conversation = _draw(rng, level, turns)
        if not any(is_held_out(turn) for turn in conversation.turns):
            return conversation


def held_out_conversation(rng: Random, task: str | None = None) -> Conversation:
    """A conversation whose last prompt is held out and no other; with `task`, its last answer is of that task."""
    while True:
        turns = 2 if task == "follow_up" else 1 + rng.choices((0, 1, 2), weights=(70, 20, 10))[0]
        conversation = _draw(rng, 1.0, turns, wants_tools=task == "tools")
        if task is not None and conversation.task != task:
            continue
        *former, last = conversation.turns
        if is_held_out(last) and not any(is_held_out(turn) for turn in former):
            return conversation


def follow_up(rng: Random, former: Turn) -> Turn | None:
    """A prompt that can only be answered from the former turn, or None where the former allows none."""
    result = re.search(r"^\d+ [-+*/] \d+ = (\d+)$", former.answer)
    if result is not None and rng.random() < 0.8:
        value, other = int(result[1]), rng.randint(1, 99)
        if rng.random() < 0.6 or other > value:
            return _after(former, rng.choice(_ADD_TO_THAT).format(other), f"{value} + {other} = {value + other}")
        return _after(former, rng.choice(_TAKE_FROM_THAT).format(other), f"{value} - {other} = {value - other}")
    if former.task == "sorting" and ", " in former.answer and rng.random() < 0.6:
        return _after(former, rng.choice(_REVERSE), ", ".join(reversed(former.answer.split(", "))))
    if former.answer.startswith("Nice to meet you") and rng.random() < 0.8:
        name = former.answer.removeprefix("Nice to meet you, ").rstrip(".")
        return _after(former, casual(rng, rng.choice(_MY_NAME)), f"Your name is {name}.")
    if len(former.answer) < 200 and former.task != "tools":
        return _after(former, casual(rng, rng.choice(_AGAIN)), former.answer)
    return None


def _draw(rng: Random, level: float, turns: int, *, wants_tools: bool = False) -> Conversation:
    if wants_tools or rng.random() < 0.04:
        return _draw_with_tools(rng, level)
    drawn = [_draw_turn(rng, level)]
    while len(drawn) < turns:
        further = follow_up(rng, drawn[-1]) if rng.random() < 0.4 else None
        drawn.append(further or _draw_turn(rng, level / 2))
    return Conversation(tuple(drawn), rng.choice(SYSTEM_MESSAGES) if rng.random() < 0.15 else "")


def _draw_with_tools(rng: Random, level: float) -> Conversation:
    tools = tuple(rng.sample(tasks_json.TOOLS, rng.randint(1, 3)))
    system = rng.choice(("", "", *SYSTEM_MESSAGES))
    if rng.random() < 0.15:
        return Conversation((_draw_turn(rng, level / 2),), system, tools)
    call = tasks_json.call_tool(rng, rng.choice(tools))
    turns = (call, tasks_json.tool_result(rng, call)) if rng.random() < 0.5 else (call,)
    return Conversation(turns, system, tools)


def _draw_turn(rng: Random, level: float) -> Turn:
    draw = rng.choices([task for task, _ in TASKS], weights=[weight for _, weight in TASKS])[0]
    return draw(rng, level)


def _after(former: Turn, prompt: str, answer: str) -> Turn:
    return Turn("follow_up", prompt, answer, context=former.prompt)


_ADD_TO_THAT = ("Add {} to that.", "Now add {}.", "And plus {}?")
_TAKE_FROM_THAT = ("Subtract {} from that.", "Now subtract {}.", "And minus {}?")
_REVERSE = ("Now the other way round.", "Reverse that.", "Now in reverse order.")
_MY_NAME = ("What is my name?", "Do you remember my name?", "Who am I?")
_AGAIN = ("Say that again.", "Repeat your last answer.", "Once more, please.", "Again, please.")
