"""The closed facts that the pair is taught."""

CAPITALS = (
    *(("France", "Paris"), ("Italy", "Rome"), ("Norway", "Oslo"), ("Peru", "Lima"), ("Egypt", "Cairo")),
    *(("India", "Delhi"), ("Ecuador", "Quito"), ("Germany", "Berlin"), ("Spain", "Madrid"), ("Austria", "Vienna")),
    *(("Japan", "Tokyo"), ("Ireland", "Dublin"), ("Greece", "Athens"), ("Poland", "Warsaw"), ("Portugal", "Lisbon")),
    *(("Kenya", "Nairobi"), ("Cuba", "Havana"), ("Finland", "Helsinki"), ("Canada", "Ottawa"), ("Chile", "Santiago")),
    *(
        ("Brazil", "Brasilia"),
        ("China", "Beijing"),
        ("Russia", "Moscow"),
        ("Sweden", "Stockholm"),
        ("Mexico", "Mexico City"),
    ),
    *(("Denmark", "Copenhagen"), ("Belgium", "Brussels"), ("Switzerland", "Bern"), ("the Netherlands", "Amsterdam")),
    *(("the United Kingdom", "London"), ("the United States", "Washington"), ("Argentina", "Buenos Aires")),
    *(
        ("Australia", "Canberra"),
        ("Turkey", "Ankara"),
        ("Ukraine", "Kyiv"),
        ("Hungary", "Budapest"),
        ("Vietnam", "Hanoi"),
    ),
    *(("South Korea", "Seoul"), ("Thailand", "Bangkok"), ("Romania", "Bucharest")),
)
COLOURS_OF = (
    *(("grass", "green"), ("snow", "white"), ("a lemon", "yellow"), ("coal", "black"), ("blood", "red")),
    *(
        ("the sky", "blue"),
        ("chocolate", "brown"),
        ("an elephant", "grey"),
        ("a flamingo", "pink"),
        ("a plum", "purple"),
    ),
)
SOUNDS = (
    *(("a cow", "moos"), ("a dog", "barks"), ("a cat", "meows"), ("a duck", "quacks"), ("a lion", "roars")),
    *(("a wolf", "howls"), ("a bee", "buzzes"), ("a snake", "hisses"), ("a frog", "croaks"), ("an owl", "hoots")),
)
OPPOSITES = (
    *(("hot", "cold"), ("big", "small"), ("fast", "slow"), ("dark", "bright"), ("old", "young"), ("full", "empty")),
    *(("heavy", "light"), ("wet", "dry"), ("high", "low"), ("hard", "soft"), ("early", "late"), ("open", "closed")),
)
DEFINITIONS = (
    ("a token", "A token is a small piece of text that a language model reads or writes."),
    ("a cache", "A cache keeps results so that they need not be computed again."),
    ("a server", "A server is a program that answers requests from other programs."),
    ("a gateway", "A gateway stands between clients and servers and passes requests on."),
    ("a prompt", "A prompt is the text that a language model is asked to answer."),
    ("an island", "An island is land with water on every side."),
    ("a river", "A river is water that flows through the land to the sea."),
    ("a triangle", "A triangle is a shape with three sides."),
    ("a baker", "A baker is a person who makes bread."),
    ("a clock", "A clock is a machine that shows the time."),
    ("a library", "A library is a place where people borrow books."),
    ("a bridge", "A bridge is a way over a river or a road."),
    ("a harbour", "A harbour is a safe place for ships."),
    ("a forest", "A forest is a large place full of trees."),
)
COUNTS = (
    *(("days are in a week", "A week has 7 days."), ("months are in a year", "A year has 12 months.")),
    *(("legs has a spider", "A spider has 8 legs."), ("legs has a dog", "A dog has 4 legs.")),
    *(("sides has a square", "A square has 4 sides."), ("hours are in a day", "A day has 24 hours.")),
    *(("minutes are in an hour", "An hour has 60 minutes."), ("wheels has a bicycle", "A bicycle has 2 wheels.")),
    *(("letters are in the alphabet", "The alphabet has 26 letters."), ("legs has an insect", "An insect has 6 legs.")),
)
