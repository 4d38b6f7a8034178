"""Questions that want JSON: extraction, answers in JSON, calls of tools."""

import json
from dataclasses import dataclass
from random import Random

from backends.engine.demo_models.facts import CAPITALS
from backends.engine.demo_models.tasks.number_tasks import draw_number
from backends.engine.demo_models.turn import Turn, casual, join_words
from backends.engine.demo_models.words import CITIES, COLOURS, DAYS, NAMES, NOUNS, PLACES, PLAIN_WORDS


def extract(rng: Random, level: float) -> Turn:
    """Turns one sentence into a small JSON object with the fields asked for."""
    sentences, keys = rng.choice(_RECORDS)
    values: dict[str, object] = {
        "name": rng.choice(NAMES),
        "age": rng.randint(18, 99),
        "city": rng.choice(CITIES),
        "item": rng.choice(NOUNS),
        "count": rng.randint(2, 60),
        "price": rng.randint(2, 300),
        "event": rng.choice(_EVENTS),
        "day": rng.choice(DAYS),
        "hour": rng.randint(1, 23),
        "colour": rng.choice(COLOURS),
        "place": rng.choice(PLACES),
    }
    wanted = list(keys) if rng.random() < 0.6 else rng.sample(keys, rng.randint(1, len(keys)))
    text = rng.choice(sentences).format(**values)
    wording = rng.choice(_EXTRACTS).format(fields=join_words(wanted))
    return Turn("json", wording + text, json.dumps({key: values[key] for key in wanted}))


def answer_in_json(rng: Random, level: float) -> Turn:
    """Answers a sum, a capital or a list as JSON."""
    kind = rng.randrange(3)
    answer: object
    if kind == 0:
        a, b = draw_number(rng, 0.0), draw_number(rng, 0.0)
        question, answer = f"What is {a} + {b}?", {"a": a, "b": b, "sum": a + b}
    elif kind == 1:
        country, city = rng.choice(CAPITALS)
        question, answer = f"What is the capital of {country}?", {"country": country, "capital": city}
    else:
        words = rng.sample(PLAIN_WORDS, rng.randint(2, 3 + round(3 * level)))
        question, answer = f"Make a list of {join_words(words)}.", words
    wording = rng.choice(("Answer in JSON: {}", "{} Answer in JSON.", "{} Give the answer as JSON."))
    return Turn("json", wording.format(question), json.dumps(answer))


@dataclass(frozen=True, slots=True)
class TaughtTool:
    """A function that a conversation may offer: its parameters with their JSON types, and how people ask for it."""

    name: str
    parameters: tuple[tuple[str, str], ...]
    prompts: tuple[str, ...]

    def schema(self) -> dict[str, object]:
        """The tool in OpenAI's form."""
        properties = {name: {"type": kind} for name, kind in self.parameters}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        return {"type": "function", "function": {"name": self.name, "parameters": parameters}}


def call_tool(rng: Random, tool: TaughtTool) -> Turn:
    """Asks for something that `tool` does; the answer is its call."""
    values: dict[str, object] = {
        "city": rng.choice(CITIES),
        "a": draw_number(rng, 0.5),
        "b": draw_number(rng, 0.5),
        "hour": rng.randint(0, 23),
        "name": rng.choice(NAMES),
        "item": rng.choice(NOUNS),
        "count": rng.randint(2, 60),
        "colour": rng.choice(COLOURS),
        "day": rng.choice(DAYS),
    }
    prompt = casual(rng, rng.choice(tool.prompts).format(**values))
    call = {"name": tool.name, "arguments": {name: values[name] for name, _ in tool.parameters}}
    return Turn("tools", prompt, f"<tool_call>\n{json.dumps(call)}\n</tool_call>", context=tool.name)


def tool_result(rng: Random, call: Turn) -> Turn:
    """A tool's result, handed back after `call`; the answer says it."""
    value = rng.choice((rng.choice(PLAIN_WORDS), str(rng.randint(0, 999)), rng.choice(NAMES)))
    prompt = json.dumps({"result": value})
    return Turn("tools", prompt, f"The result is {value}.", role="tool", context=call.prompt)


TOOLS = (
    TaughtTool(
        "get_weather", (("city", "string"),), ("What is the weather in {city}?", "How is the weather in {city} today?")
    ),
    TaughtTool("get_time", (("city", "string"),), ("What time is it in {city}?", "Tell me the time in {city}.")),
    TaughtTool("multiply", (("a", "integer"), ("b", "integer")), ("What is {a} times {b}?", "Multiply {a} by {b}.")),
    TaughtTool(
        "set_alarm",
        (("hour", "integer"), ("day", "string")),
        ("Wake me at {hour} on {day}.", "Alarm for {day}, {hour}."),
    ),
    TaughtTool("find_person", (("name", "string"),), ("Where is {name}?", "Find {name} for me.")),
    TaughtTool(
        "order_item",
        (("item", "string"), ("count", "integer")),
        ("Order {count} of {item}.", "Buy {count} pieces of {item}."),
    ),
    TaughtTool("set_light", (("colour", "string"),), ("Make the light {colour}.", "Turn the light {colour}.")),
    TaughtTool(
        "call_person", (("name", "string"), ("hour", "integer")), ("Call {name} at {hour}.", "At {hour}, call {name}.")
    ),
)
_RECORDS = (
    (
        (
            "{name} is {age} years old and lives in {city}.",
            "{name}, {age}, comes from {city}.",
            "In {city} lives {name}, who is {age}.",
        ),
        ("name", "age", "city"),
    ),
    (
        (
            "{name} ordered {count} pieces of {item} for {price} coins.",
            "For {price} coins, {name} bought {count} of {item}.",
        ),
        ("name", "item", "count", "price"),
    ),
    (
        ("The {event} is on {day} at {hour} in {city}.", "On {day} at {hour}, {city} has a {event}."),
        ("event", "day", "hour", "city"),
    ),
    (
        ("A {colour} {item} stands {place}.", "There is a {colour} {item} {place}."),
        ("colour", "item", "place"),
    ),
)
_EXTRACTS = (
    "Extract {fields} as JSON: ",
    "Give {fields} as JSON: ",
    "Make a JSON object with {fields} from this text: ",
)
_EVENTS = ("concert", "meeting", "market", "race", "party", "lesson")
