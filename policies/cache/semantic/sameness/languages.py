"""Which of five languages a text is in, a guess from a few words, and its number words in digits."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W\d_]+")
_COMMON = {
    "en": "the a an of to is are you your in for and it this that be can not with on at will from or as by we",
    "de": "der die das und ist nicht ein eine sie ihr den dem im mit auf für von zu es wird sind kann am nach",
    "fr": "le la les des et est ne pas un une vous du en dans pour que il elle au aux sur avec peut se ce",
    "es": "el la los las y es no un una usted de del en que por para con se su al puede lo está tiene",
    "it": "il lo la gli e è non un una di del della in che per con si su al può le sono da nel ha",
}
_OF = {language: frozenset(words.split()) for language, words in _COMMON.items()}
_MAX_WORDS = 200


def _numbers(ones: str, tens: str, joined: str, *, ones_first: bool = False, units: str = "") -> dict[str, int]:
    """Words for 2 to 99. `ones` from 0 to 19 or more, `tens` from where these end on, `joined` between the two."""
    names = ones.split()
    numbers = {name: number for number, name in enumerate(names)}
    digits = units.split() or names[1:10]
    first = -(-len(names) // 10)
    for ten, name in enumerate(tens.split(), start=first):
        numbers[name] = 10 * ten
        for unit, digit in enumerate(digits, start=1):
            numbers[digit + joined + name if ones_first else name + joined + digit] = 10 * ten + unit
    return numbers


_GERMAN = _numbers(
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn",
    "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig",
    "und",
    ones_first=True,
    units="ein zwei drei vier fünf sechs sieben acht neun",
)
_FRENCH = _numbers(
    "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept dix-huit "
    "dix-neuf",
    "vingt trente quarante cinquante soixante",
    "-",
) | {"vingt et un": 21, "trente et un": 31, "soixante-dix": 70, "quatre-vingts": 80, "quatre-vingt-dix": 90}
_SPANISH = _numbers(
    "cero uno dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince dieciséis diecisiete "
    "dieciocho diecinueve veinte veintiuno veintidós veintitrés veinticuatro veinticinco veintiséis veintisiete "
    "veintiocho veintinueve",
    "treinta cuarenta cincuenta sesenta setenta ochenta noventa",
    " y ",
)
_ITALIAN = _numbers(
    "zero uno due tre quattro cinque sei sette otto nove dieci undici dodici tredici quattordici quindici sedici "
    "diciassette diciotto diciannove",
    "venti trenta quaranta cinquanta sessanta settanta ottanta novanta",
    "",
) | {"ventuno": 21, "ventotto": 28, "trentuno": 31, "trentotto": 38, "quarantuno": 41, "cinquantuno": 51}
TABLES = {"de": _GERMAN, "fr": _FRENCH, "es": _SPANISH, "it": _ITALIAN}
_FORMS = {
    language: re.compile(
        rf"\b(?:{'|'.join(sorted((word for word, number in table.items() if number != 1), key=len, reverse=True))})\b",
        re.IGNORECASE,
    )
    for language, table in TABLES.items()
}


def language_of(text: str) -> str:
    """`en`, `de`, `fr`, `es` or `it`: whose common words it has most of."""
    words = [found[0] for found, _ in zip(_WORD.finditer(text.casefold()), range(_MAX_WORDS), strict=False)]
    counts = {language: sum(word in common for word in words) for language, common in _OF.items()}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] > counts["en"] else "en"


def in_digits_of(text: str, language: str) -> str:
    """The text with that language's number words in digits. A lone "one" stays: it is as often a word for "a"."""
    table = TABLES[language]
    return _FORMS[language].sub(lambda found: str(table[found[0].lower()]), text)
