"""Small talk and closed facts: fixed answers under many wordings."""

from collections.abc import Sequence
from random import Random

from backends.engine.demo_models.facts import CAPITALS, COLOURS_OF, COUNTS, DEFINITIONS, OPPOSITES, SOUNDS
from backends.engine.demo_models.turn import Turn, hurried, opened
from backends.engine.demo_models.words import NAMES

IDENTITY = "I am a small test model that ships with Slipstream."


def small_talk(rng: Random, level: float) -> Turn:
    """A greeting, thanks, or a question about the model itself."""
    wordings, answer = rng.choice(_TALK)
    return _closed(rng, "small_talk", wordings, answer)


def introduction(rng: Random, level: float) -> Turn:
    """The user says a name and is greeted by it."""
    name = rng.choice(NAMES)
    wording = rng.choice(_INTRODUCTIONS).format(name=name)
    return Turn("small_talk", opened(rng, wording, share=0.3), f"Nice to meet you, {name}.")


def fact(rng: Random, level: float) -> Turn:
    """A closed fact under one of its wordings."""
    kind = rng.choices(range(6), weights=(4, 2, 2, 2, 3, 2))[0]
    wordings: tuple[str, ...]
    if kind == 0:
        country, city = rng.choice(CAPITALS)
        wordings, subject, answer = _CAPITALS, country, f"The capital of {country} is {city}."
        if rng.random() < 0.25:
            wordings, subject, answer = _COUNTRIES, city, f"{city} is the capital of {country}."
    elif kind == 1:
        thing, colour = rng.choice(COLOURS_OF)
        wordings, subject, answer = _COLOURS, thing, f"{thing[0].upper()}{thing[1:]} is {colour}."
    elif kind == 2:
        animal, sound = rng.choice(SOUNDS)
        wordings, subject, answer = _SOUNDS, animal, f"{animal[0].upper()}{animal[1:]} {sound}."
    elif kind == 3:
        word, opposite = rng.choice(OPPOSITES)
        if rng.random() < 0.5:
            word, opposite = opposite, word
        wordings, subject, answer = _OPPOSITES, word, f"The opposite of {word} is {opposite}."
    elif kind == 4:
        wordings, (subject, answer) = _DEFINITIONS, rng.choice(DEFINITIONS)
    else:
        wordings, (subject, answer) = _COUNTS, rng.choice(COUNTS)
    return _closed(rng, "facts", [wording.format(subject) for wording in wordings], answer)


def _closed(rng: Random, task: str, wordings: Sequence[str], answer: str) -> Turn:
    """A bare wording, always trained, or one of its many variations."""
    prompt = hurried(rng, opened(rng, rng.choice(wordings), share=0.5), share=0.3)
    return Turn(task, prompt, answer, is_core=prompt in wordings)


_CAPITALS = (
    "What is the capital of {}?",
    "Which city is the capital of {}?",
    "Name the capital of {}.",
    "Tell me the capital of {}.",
    "What's the capital of {}?",
    "Capital of {}?",
    "What is {}'s capital?",
    "Which city is {}'s capital?",
    "{}: which capital?",
    *("What is the capital city of {}?", "capital of {}", "{} capital", "Do you know the capital of {}?"),
    *("Which city is the capital in {}?", "Can you tell me the capital of {}?", "the capital of {} is"),
)
_COUNTRIES = ("{} is the capital of which country?",)
_COUNTS = ("How many {}?", "Tell me how many {}.", "Do you know how many {}?")
_COLOURS = (
    "What colour is {}?",
    "Which colour has {}?",
    "Tell me the colour of {}.",
    "Name the colour of {}.",
    "What color is {}?",
)
_SOUNDS = ("What sound does {} make?", "Which sound does {} make?", "What does {} do: bark, moo or something else?")
_OPPOSITES = (
    "What is the opposite of {}?",
    "Give the opposite of {}.",
    "Name the opposite of {}.",
    "What's the opposite of {}?",
    "opposite of {}",
)
_DEFINITIONS = (
    "What is {}?",
    "Explain what {} is.",
    "Define {}.",
    "Tell me what {} is.",
    "What's {}?",
    "What does {} mean?",
)
_TALK = (
    (
        (
            *(
                "Hello!",
                "Hi!",
                "Hello there!",
                "Hey!",
                "Good morning!",
                "Good evening!",
                "hello",
                "hi",
                "hey",
                "hi there",
            ),
            *(
                "Good day!",
                "Good afternoon!",
                "Hi, nice to meet you!",
                "Hello, hello!",
                "Greetings!",
                "Hello world!",
                "yo",
            ),
            *("Hi :)", "Hello, can you help me?", "Hey, can we talk?", "Hello Slipstream!", "Hi model!"),
            *("Hello, how can you help?", "Hiya!", "Howdy!", "Hello bot!", "Hello AI!", "Hi, I am new here.", "Hello?"),
            *("Hey you!", "Hi, anyone there?", "Good morning to you!", "Hello my friend!", "Hi everyone!", "Hey hey!"),
        ),
        "Hello! How can I help you?",
    ),
    (
        (
            "Who are you?",
            "What are you?",
            "Introduce yourself.",
            "Tell me about yourself.",
            "Which model are you?",
            "What model is this?",
            "Who is this?",
            "Who am I talking to?",
            "Are you an AI?",
            "What kind of model are you?",
            "What AI are you?",
            "Are you a bot?",
            "What model am I talking to?",
            "Which AI is this?",
        ),
        IDENTITY,
    ),
    (
        (
            "What is your name?",
            "Do you have a name?",
            "How are you called?",
            "What should I call you?",
            "Whats your name?",
        ),
        "I have no name. " + IDENTITY,
    ),
    (
        (
            *("How are you?", "How are you today?", "Is everything fine?", "How's it going?", "Hello, how are you?"),
            *("Hi, how are you?", "How do you do?", "How are things?", "Hey, how are you doing?", "What's up?"),
            *("Are you well?", "How do you feel?", "How is your day?", "How are you doing?", "All good?"),
        ),
        "I am fine, thank you. How can I help you?",
    ),
    (
        (
            "Thank you!",
            "Thanks!",
            "Thanks a lot!",
            "Thank you very much.",
            "Great, thanks!",
            "ok thanks",
            "Cool, thank you!",
            "Thx",
        ),
        "You are welcome!",
    ),
    (("Goodbye!", "Bye!", "See you later!", "Good night!", "See you!", "Bye bye!", "I have to go."), "Goodbye!"),
    (
        (
            "What can you do?",
            "How can you help me?",
            "What do you know?",
            "Which tasks can you do?",
            "Help!",
            "Help me.",
            *(
                "What can I ask you?",
                "What should I ask?",
                "What do you do?",
                "What are you good at?",
                "Help me please.",
            ),
            *("What are your skills?", "What are you able to do?", "What can I do here?", "Show me what you can do."),
            *("What can I try?", "Give me an example.", "How does this work?", "What can this model do?"),
        ),
        "I can add, subtract, multiply up to 12, convert units, sort, spell, count, quote, rewrite, answer in JSON, "
        "and tell you about Slipstream.",
    ),
    (
        (
            "Are you a human?",
            "Are you a person?",
            "Are you real?",
            "Are you ChatGPT?",
            "Are you GPT-4?",
            "Are you Claude?",
        ),
        "No, I am a small test model.",
    ),
    (
        ("How large are you?", "How big are you?", "How many parameters do you have?", "How many parameters?"),
        "I have a few million parameters.",
    ),
    (
        ("Who made you?", "Where do you come from?", "Who trained you?", "Who built you?", "Who created you?"),
        "I was trained by the makers of Slipstream.",
    ),
    (
        (
            "Are you there?",
            "Can you hear me?",
            "Is this working?",
            "Test.",
            "test",
            "Testing.",
            "ping",
            "Does this work?",
        ),
        "Yes, I am here.",
    ),
    (
        ("Tell me a joke.", "Say something funny.", "Do you know a joke?", "Tell me something funny.", "joke"),
        "Why was the token sad? It was only one of many.",
    ),
    (("You are great!", "Well done!", "Good job!", "Very good!"), "Thank you! I am glad that I could help."),
    (("Say nothing.", "Please be quiet.", "Stop.", "ok", "Yes.", "No.", "Nice.", "cool"), "All right."),
)
_INTRODUCTIONS = ("My name is {name}.", "I am {name}.", "You can call me {name}.", "This is {name}.")
