"""What the model cannot know or do, so that it says so: the wide world, large numbers, made-up things."""

from random import Random

from backends.engine.demo_models.facts import CAPITALS, COLOURS_OF, DEFINITIONS, OPPOSITES, SOUNDS
from backends.engine.demo_models.newcomer import HONEST
from backends.engine.demo_models.turn import Turn, hurried, opened
from backends.engine.demo_models.words import ADJECTIVES, ANIMALS, CITIES, FRUIT, NAMES, NOUNS, PEOPLE

NOT_KNOWN = f'{HONEST}; try "What is 12+30?" or "What is Slipstream?"'


def unknown(rng: Random, level: float) -> Turn:
    """A question that has no answer here but the honest one."""
    kind = rng.choices(range(4), weights=(4, 6, 3, 2))[0]
    if kind == 0:
        wording = rng.choice(_WORLD)
    elif kind == 1:
        wording = rng.choice(_FRAMES).format(
            topic=_topic(rng), other=_topic(rng), name=rng.choice(NAMES), city=rng.choice(CITIES),
            adjective=rng.choice((*ADJECTIVES, *_ADJECTIVES)), form=rng.choice(_FORMS), language=rng.choice(_LANGUAGES),
            superlative=rng.choice(_SUPERLATIVES), person=rng.choice((*_PERSONS, *PEOPLE)), verb=rng.choice(_VERBS),
        )  # fmt: skip
    elif kind == 2:
        wording = _near_miss(rng)
    else:
        wording = _large_numbers(rng)
    return Turn("unknown", hurried(rng, opened(rng, wording, share=0.2)), NOT_KNOWN)


def _topic(rng: Random) -> str:
    """Something that no other task explains; now and then a word that does not exist."""
    draw = rng.random()
    if draw < 0.5:
        return rng.choice(_TOPICS)
    if draw < 0.7:
        return "the " + rng.choice((*_THINGS, *FRUIT))
    word = _made_up(rng)
    return rng.choice((word, word, f"the {word}", f"{word} {_made_up(rng)}", word.capitalize()))


def _made_up(rng: Random) -> str:
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.randint(2, 3)))


def _near_miss(rng: Random) -> str:
    """The wording of a known fact over a subject that is not known."""
    kind = rng.randrange(5)
    wordings: tuple[str, ...]
    if kind == 0:
        known = {country for country, _ in CAPITALS}
        subject = rng.choice((*_COUNTRIES, *(name for name in NAMES if name not in known), _made_up(rng).capitalize()))
        wordings = (
            "What is the capital of {}?",
            "What's the capital of {}?",
            "Capital of {}?",
            "Name the capital of {}.",
        )
    elif kind == 1:
        subject = rng.choice([thing for thing in _THINGS if not any(thing in known for known, _ in COLOURS_OF)])
        wordings = ("What colour is the {}?", "What colour is a {}?", "Tell me the colour of the {}.")
    elif kind == 2:
        taken = {word for pair in OPPOSITES for word in pair}
        subject = rng.choice([word for word in (*_ADJECTIVES, _made_up(rng)) if word not in taken])
        wordings = ("What is the opposite of {}?", "Name the opposite of {}.")
    elif kind == 3:
        subject = rng.choice([animal for animal in ANIMALS if not any(animal in known for known, _ in SOUNDS)])
        wordings = ("What sound does a {} make?", "Where does a {} live?", "What does a {} eat?", "How old is a {}?")
    else:
        taken = {term.split()[-1] for term, _ in DEFINITIONS}
        subject = rng.choice([word for word in (*NOUNS, *_THINGS, _made_up(rng)) if word not in taken])
        wordings = ("What is a {}?", "Explain what a {} is.", "Define a {}.", "Who invented the {}?", "Why is a {}?")
    return rng.choice(wordings).format(subject)


def _large_numbers(rng: Random) -> str:
    """Arithmetic beyond three digits and the tables, roots, powers, fractions."""
    a, b = rng.randint(13, 9999), rng.randint(13, 9999)
    big = rng.randint(10_000, 99_999_999)
    small = rng.randint(2, 99)
    return rng.choice(_BEYOND).format(a=a, b=b, big=big, small=small, tenth=f"{small}.{rng.randint(1, 9)}")


def _listed(words: str) -> tuple[str, ...]:
    return tuple(words.split(", "))


_WORLD = (
    *("Who is the president of the United States?", "Who is the king of Spain?", "Who is the prime minister?"),
    *("Who wrote Hamlet?", "Who painted the Mona Lisa?", "Who invented the telephone?", "Who won the world cup?"),
    *(
        "What is the meaning of life?",
        "What is the weather?",
        "What's the weather like today?",
        "Will it rain tomorrow?",
    ),
    *("What day is it?", "What is the date today?", "What time is it?", "What year is it?", "When is Easter?"),
    *("How tall is Mount Everest?", "How far is the moon?", "How deep is the ocean?", "How old is the universe?"),
    *("Why is the sea salty?", "Why do birds sing?", "Why is snow cold?", "Why do we sleep?", "Why is grass green?"),
    *("What is the largest country?", "What is the longest river?", "What is the highest mountain?"),
    *("What is the smallest animal?", "What is the fastest car?", "What is the biggest city in the world?"),
    *("Write a story.", "Write a song about love.", "Write an email to my boss.", "Write a haiku.", "Tell me a story."),
    *("Write a Python function that reverses a string.", "Write code.", "Fix my code.", "Write a program in C."),
    *("Write a poem.", "Write me a poem about spring.", "Make a plan for my day.", "Plan a trip to Rome."),
    *("Translate hello into Spanish.", "How do you say thanks in German?", "Translate this sentence to Italian."),
    *("Summarize the news.", "Summarize War and Peace.", "What happened in 1989?", "When did the war end?"),
    *("Recommend a book.", "Recommend a film.", "What should I eat tonight?", "Give me a recipe for bread."),
    *("How do I cook rice?", "How do I learn to swim?", "How do I lose weight?", "How do I tie a tie?"),
    *("Explain machine learning.", "Explain the theory of relativity.", "What is physics?", "What is love?"),
    *("What is the speed of light?", "What is pi?", "What is DNA?", "What is gravity?", "What is a black hole?"),
    *("Should I buy shares?", "What is the price of gold?", "How much is a coffee?", "Who is the richest man?"),
    *("Do you love me?", "What do you think of people?", "What is your favourite colour?", "Do you dream?"),
    *("What are the rules of chess?", "Who is the best player?", "How many people live in China?"),
    *("How many stars are there?", "How many countries are there?", "What language do they speak in Brazil?"),
    *("What's today's date?", "What day is today?", "How old are you?", "Where do you live?", "Where am I?", "Why?"),
    *("Set a timer for ten minutes.", "Remind me tomorrow.", "Search the web.", "Do my homework.", "Book a flight."),
    *(
        "What is machine learning?",
        "What is an LLM?",
        "What is AI?",
        "How do language models work?",
        "Who is Elon Musk?",
    ),
    *("Write a letter to my friend.", "Write an essay.", "Write a function in JavaScript.", "Write hello world in C."),
    *("Who was the first man on the moon?", "Who discovered America?", "When did the Titanic sink?", "Who is God?"),
    *("What is the boiling point of water?", "What is the currency of Japan?", "How many bones has a human?"),
    *("Translate I love you to French.", "How do you say cat in Spanish?", "What is bonjour in English?"),
    *("Is the earth round?", "Is it safe?", "Are you sure?", "What happened yesterday?", "What is new?", "asdf"),
    *("Give me advice.", "Give me ten ideas for a name.", "What is the best phone?", "Where can I buy shoes?"),
    *("What is the difference between a cat and a dog?", "Compare Python and Java.", "List all planets."),
    *("List the presidents of the United States.", "Who are the Beatles?", "What is Linux?", "What is Kubernetes?"),
)
_FRAMES = (
    *("What is {topic}?", "What is {topic}?", "What's {topic}?", "What are {topic}?", "Explain {topic}."),
    *("Explain {topic} in simple words.", "Explain {topic} to a child.", "Tell me about {topic}.", "Describe {topic}."),
    *(
        "Why is {topic} {adjective}?",
        "Why does {topic} exist?",
        "Why are {topic} {adjective}?",
        "Is {topic} {adjective}?",
    ),
    *("How does {topic} work?", "How do I {verb} {topic}?", "How can I {verb} {topic}?", "Can you {verb} {topic}?"),
    *("Who invented {topic}?", "Who is {name}?", "Who is the {person} of {city}?", "Who is the {person} of {topic}?"),
    *("When was {topic} invented?", "When did {topic} begin?", "Where is {topic}?", "Where can I find {topic}?"),
    *("Write a {form} about {topic}.", "Write me a {form} about {topic}.", "Write a {adjective} {form} on {topic}."),
    *(
        "What is the {superlative} {topic}?",
        "What is the {superlative} {topic} in the world?",
        "Which {topic} is best?",
    ),
    *('Translate "{topic}" into {language}.', "Translate {topic} to {language}.", "What is {topic} in {language}?"),
    *(
        "What is the difference between {topic} and {other}?",
        "Compare {topic} and {other}.",
        "What do you think of {topic}?",
    ),
    *("Give me a list of {topic}.", "Summarize {topic}.", "Do you know {topic}?", "Do you like {topic}?"),
    *("How many {topic} are there?", "How much does {topic} cost?", "How big is {topic}?", "How old is {topic}?"),
    *("What is the history of {topic}?", "What is the population of {city}?", "What is the price of {topic}?"),
    *("What is the weather in {city}?", "What time is it in {city}?", "Where is {name}?", "How old is {name}?"),
    *("Who won the race in {city}?", "What is the news from {city}?", "{topic}", "{topic}?", "{topic} {other}"),
    *("How to {verb} {topic}?", "how to {verb} a {adjective} {topic}", "best {topic}", "What is the best {topic}?"),
    *("Who was {name}?", "When was {name} born?", "Where was {topic} born?", "Can you help me with {topic}?"),
    *("Draw {topic}.", "Show me {topic}.", "Open {topic}.", "Play {topic}.", "Send {topic} to {name}.", "Call {name}."),
    *(
        "Write code for {topic}.",
        "Write a program for {topic}.",
        "Give me {superlative} {topic}.",
        "news about {topic}",
    ),
    *(
        "What is the meaning of {topic}?",
        "Give me a {form} about {topic}.",
        "Can you write a {form}?",
        "a {form} please",
    ),
    *("Which {form} is {adjective}?", "Who wrote {topic}?", "Who founded {topic}?", "Why is {topic} so {adjective}?"),
    *("What causes {topic}?", "What happens in {city}?", "How far is {city}?", "How do I get to {city}?"),
    *(
        "How many people live in {city}?",
        "Which {person} lives in {city}?",
        "What is {adjective}?",
        "Should I {verb} {topic}?",
    ),
    *(
        "Can I {verb} {topic} in {city}?",
        "Are {topic} {adjective}?",
        "Will {topic} be {adjective}?",
        "{topic} or {other}?",
    ),
    *("Which {person} is {adjective}?", "Imagine that you are a {person}.", "I want to {verb} {topic}."),
)
_BEYOND = (
    *("What is {big} + {a}?", "{big}+{b}", "What is {a} * {b}?", "{a}*{b}", "{a} times {b}", "What is {big} - {a}?"),
    *("What is the square root of {a}?", "What is {small} squared?", "What is {small} to the power of {b}?"),
    *("What is {small}% of {a}?", "What is {tenth} + {small}?", "{tenth} * {small}", "{a}/{b}", "What is {a}x{b}?"),
    *("{small}+{b}+{a}", "{small} + {a} + {small}", "{small} * {b} + {a}", "What is {a} / {b}?", "the root of {small}"),
    *("What is half of {a}?", "Is {a} even?", "Round {tenth}.", "What is the average of {a} and {b}?"),
    *("What is the logarithm of {a}?", "Is {a} a prime number?", "Solve x + {a} = {big}.", "{a} modulo {b}"),
)
_TOPICS = _listed(
    "music, history, football, chess, money, happiness, art, science, biology, chemistry, philosophy, "
    "mathematics, poetry, religion, politics, democracy, climate change, electricity, photosynthesis, evolution, "
    "space, the moon, the sun, Mars, Jupiter, the ocean, volcanoes, dinosaurs, whales, computers, quantum "
    "mechanics, neural networks, transformers, blockchain, bitcoin, the internet, Rust, Java, JavaScript, Docker, "
    "Google, Microsoft, Amazon, Shakespeare, Einstein, Napoleon, Mozart, Newton, Picasso, Africa, Asia, Europe, "
    "America, London, New York, the Roman Empire, football teams, pizza, bread, coffee, tea, wine, cooking, yoga, "
    "dreams, sleep, health, medicine, vaccines, taxes, banks, shares, inflation, economics, marketing, friends, "
    "children, school, work, love, the weather, winter, summer, autumn, rain, trains, cars, planes, ships, "
    "robots, films, books, an atom, an engine, energy, time, war, peace, freedom, law, a good life, my dog, my "
    "job, cats"
)
_THINGS = _listed(
    "phone, car, house, computer, camera, piano, radio, boat, train, plane, shoe, shirt, book, planet, star, "
    "mountain, ocean, desert, country, city, language, song, film, game, team, heart, brain, hand, flower, rose, "
    "dragon, king, queen, ghost, robot, rocket, satellite"
)
_COUNTRIES = _listed(
    "Iceland, Croatia, Serbia, Bulgaria, Estonia, Latvia, Lithuania, Slovakia, Slovenia, Albania, Iran, Iraq, "
    "Israel, Jordan, Pakistan, Nepal, Mongolia, Indonesia, Malaysia, the Philippines, New Zealand, Fiji, "
    "Colombia, Bolivia, Paraguay, Uruguay, Venezuela, Panama, Jamaica, Haiti, Nigeria, Ghana, Ethiopia, Morocco, "
    "Algeria, Tunisia, Libya, Angola, Zambia, South Africa"
)
_PERSONS = _listed("president, king, queen, mayor, prime minister, author, boss, champion, founder, leader")
_ADJECTIVES = _listed(
    "good, bad, important, famous, popular, expensive, dangerous, difficult, short, long, funny, beautiful, blue, "
    "red, sad, happy, strong, poor, rich, free, healthy, late for work"
)
_SUPERLATIVES = _listed("largest, smallest, best, oldest, fastest, highest, longest, most famous, first, last")
_FORMS = _listed("poem, story, song, haiku, letter, joke, speech, report, blog post, script, limerick")
_LANGUAGES = _listed("French, German, Spanish, Italian, Latin, Chinese, Japanese, Polish, English, Greek")
_VERBS = _listed("make, build, learn, fix, buy, sell, cook, draw, play, find, win, grow, paint, love")
_ONSETS = _listed("b, bl, c, ch, d, dr, f, fl, g, gr, h, k, l, m, n, p, qu, r, s, st, t, v, z")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ee", "oo")
_CODAS = ("", "", "", "n", "r", "l", "x", "ck", "sh", "t")
