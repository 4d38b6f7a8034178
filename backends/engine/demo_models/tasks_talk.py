"""Small talk and closed facts: fixed answers under many wordings."""

from random import Random

from backends.engine.demo_models.facts import CAPITALS, COLOURS_OF, COUNTS, DEFINITIONS, OPPOSITES, SOUNDS
from backends.engine.demo_models.turn import Turn, casual, opened
from backends.engine.demo_models.words import CITIES, NAMES

IDENTITY = "I am a small test model that ships with Slipstream."


def small_talk(rng: Random, level: float) -> Turn:
    """A greeting, thanks, or a question about the model itself."""
    wordings, answer = rng.choice(_TALK)
    return _closed(rng, "small_talk", rng.choice(wordings), answer)


def introduction(rng: Random, level: float) -> Turn:
    """The user says a name and is greeted by it."""
    name = rng.choice(NAMES)
    wording = rng.choice(_INTRODUCTIONS).format(name=name)
    return Turn("small_talk", opened(rng, wording, share=0.3), f"Nice to meet you, {name}.")


def unknown(rng: Random, level: float) -> Turn:
    """A question about the world of today, which the model does not know."""
    wording = rng.choice(_UNKNOWN).format(city=rng.choice(CITIES), name=rng.choice(NAMES))
    return Turn("small_talk", casual(rng, opened(rng, wording)), "I do not know that. I am only a small test model.")


def fact(rng: Random, level: float) -> Turn:
    """A closed fact under one of its wordings."""
    kind = rng.choices(range(6), weights=(4, 2, 2, 2, 3, 2))[0]
    if kind == 0:
        country, city = rng.choice(CAPITALS)
        wording, answer = rng.choice(_CAPITALS).format(country), f"The capital of {country} is {city}."
        if rng.random() < 0.25:
            wording, answer = f"{city} is the capital of which country?", f"{city} is the capital of {country}."
    elif kind == 1:
        thing, colour = rng.choice(COLOURS_OF)
        wording, answer = rng.choice(_COLOURS).format(thing), f"{thing[0].upper()}{thing[1:]} is {colour}."
    elif kind == 2:
        animal, sound = rng.choice(SOUNDS)
        wording, answer = rng.choice(_SOUNDS).format(animal), f"{animal[0].upper()}{animal[1:]} {sound}."
    elif kind == 3:
        word, opposite = rng.choice(OPPOSITES)
        if rng.random() < 0.5:
            word, opposite = opposite, word
        wording, answer = rng.choice(_OPPOSITES).format(word), f"The opposite of {word} is {opposite}."
    elif kind == 4:
        term, answer = rng.choice(DEFINITIONS)
        wording = rng.choice(_DEFINITIONS).format(term)
    else:
        what, answer = rng.choice(COUNTS)
        wording = rng.choice(("How many {}?", "Tell me how many {}.")).format(what)
    return _closed(rng, "facts", wording, answer)


def _closed(rng: Random, task: str, wording: str, answer: str) -> Turn:
    """The bare wording, always trained, or one of its many variations."""
    prompt = casual(rng, opened(rng, wording, share=0.6), share=0.15)
    return Turn(task, prompt, answer, is_core=prompt == wording)


_CAPITALS = (
    "What is the capital of {}?",
    "Which city is the capital of {}?",
    "Name the capital of {}.",
    "Tell me the capital of {}.",
    "{}: which capital?",
)
_COLOURS = ("What colour is {}?", "Which colour has {}?", "Tell me the colour of {}.", "Name the colour of {}.")
_SOUNDS = ("What sound does {} make?", "Which sound does {} make?", "What does {} do: bark, moo or something else?")
_OPPOSITES = ("What is the opposite of {}?", "Give the opposite of {}.", "Name the opposite of {}.")
_DEFINITIONS = ("What is {}?", "Explain what {} is.", "Define {}.", "Tell me what {} is.")
_TALK = (
    (("Hello!", "Hi!", "Hello there!", "Hey!", "Good morning!", "Good evening!"), "Hello! How can I help you?"),
    (
        ("Who are you?", "What are you?", "Introduce yourself.", "Tell me about yourself.", "Which model are you?"),
        IDENTITY,
    ),
    (("What is your name?", "Do you have a name?", "How are you called?"), "I have no name. " + IDENTITY),
    (("How are you?", "How are you today?", "Is everything fine?"), "I am fine, thank you. How can I help you?"),
    (("Thank you!", "Thanks!", "Thanks a lot!", "Thank you very much.", "Great, thanks!"), "You are welcome!"),
    (("Goodbye!", "Bye!", "See you later!", "Good night!"), "Goodbye!"),
    (
        ("What can you do?", "How can you help me?", "What do you know?", "Which tasks can you do?"),
        "I can add and subtract, convert units, sort, spell, count, quote, rewrite, and answer in JSON.",
    ),
    (("Are you a human?", "Are you a person?", "Are you real?"), "No, I am a small test model."),
    (
        ("How large are you?", "How big are you?", "How many parameters do you have?"),
        "I have a few million parameters.",
    ),
    (("Who made you?", "Where do you come from?", "Who trained you?"), "I was trained by the makers of Slipstream."),
    (("Are you there?", "Can you hear me?", "Is this working?", "Test."), "Yes, I am here."),
    (("Tell me a joke.", "Say something funny."), "Why was the token sad? It was only one of many."),
    (("You are great!", "Well done!", "Good job!", "Very good!"), "Thank you! I am glad that I could help."),
    (("Say nothing.", "Please be quiet.", "Stop."), "All right."),
)
_INTRODUCTIONS = ("My name is {name}.", "I am {name}.", "You can call me {name}.", "This is {name}.")
_UNKNOWN = (
    "What is the weather in {city}?",
    "What time is it in {city}?",
    "Where is {name}?",
    "Who won the race in {city}?",
    "What is the news from {city}?",
    "How old is {name}?",
)
