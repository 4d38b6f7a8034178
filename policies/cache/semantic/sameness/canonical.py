"""Text with what can be written in several ways written in one: numbers, money, times of day, dates, units, "not".

Both answers are brought into this form before anything compares them, so that neither a vector nor a list of words has
to know that a quarter to six in the evening is 17:45.
"""

from __future__ import annotations

import re

from policies.cache.semantic.sameness.languages import in_digits_of, language_of
from policies.cache.semantic.sameness.number_words import in_digits
from policies.cache.semantic.sameness.signs import in_words, of_one_width

_MONTH_NAMES = (
    "january february march april may june july august september october november december "
    "januar februar märz april mai juni juli august september oktober november dezember "
    "janvier février mars avril mai juin juillet août septembre octobre novembre décembre "
    "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre "
    "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre"
)
MONTHS = _MONTH_NAMES.split()
"""In English, German, French, Spanish and Italian."""
_MONTH_OF = {name: MONTHS[number % 12] for number, name in enumerate(MONTHS)} | {
    name[:3]: name for name in MONTHS[:12] if name != "may"
}
_MONTH = "|".join(sorted(_MONTH_OF, key=len, reverse=True))
_DAY = r"(\d{1,2})(?:st|nd|rd|th|\.|er)?"
_DAY_FIRST = re.compile(
    rf"\b(?:the )?{_DAY} (?:of |de |di )?({_MONTH})\b\.?(?:,? (?:de |del )?(\d{{4}})\b)?", re.IGNORECASE
)
_MONTH_FIRST = re.compile(rf"\b({_MONTH})\.? (?:the )?{_DAY}(?!\d|:|\s*(?:am|pm))(?:,? (\d{{4}})\b)?", re.IGNORECASE)
_ISO_DATE = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b")
_DOTTED_DATE = re.compile(r"\b(\d{1,2})\.(0?[1-9]|1[0-2])\.((?:19|20)\d{2})\b")
_MONTH_NUMBER = re.compile(r"(?<![\d/])(0?[1-9]|1[0-2])/((?:19|20)\d{2})\b(?!/)")
_MONTH_AND_YEAR = re.compile(rf"\b({_MONTH})\.?,? (?:of |de |del )?((?:19|20)\d{{2}})\b", re.IGNORECASE)

_HALF_DAY = r"a\.m\.|am|p\.m\.|pm|in the (?:morning|afternoon|evening)|at night"
_SPOKEN = re.compile(
    rf"\b(half past|(?:a )?quarter (?:past|to)|(\d{{1,2}}) minutes (?:past|to)) (\d{{1,2}})\b"
    rf"(?: ?({_HALF_DAY})(?!\w))?",
    re.IGNORECASE,
)
_CLOCK = re.compile(rf"\b(\d{{1,2}})(?:[:.](\d{{2}}))? ?({_HALF_DAY}|o'clock(?: ({_HALF_DAY}))?)(?!\w)", re.IGNORECASE)
_DAY_CLOCK = re.compile(r"\b(\d{1,2})(?::(\d{2}))? ?(?:uhr|heures|h(?=\d{2}\b))(?: ?(\d{2})\b)?", re.IGNORECASE)
_NOON = re.compile(r"\b(?:noon|midday)\b", re.IGNORECASE)
_MIDNIGHT = re.compile(r"\bmidnight\b", re.IGNORECASE)
_PADDED = re.compile(r"\b0(\d:\d{2})\b")

_CURRENCIES = {
    **dict.fromkeys(("€", "eur", "euro", "euros"), "euros"),
    **dict.fromkeys(("$", "usd", "dollar", "dollars", "us$"), "dollars"),
    **dict.fromkeys(("£", "gbp", "pound sterling", "pounds sterling"), "pounds"),
}
_NUMBER = r"\d+(?:[.,]\d+)*"
_MONEY_BEFORE = re.compile(rf"(?:\b(EUR|USD|GBP) ?|(US\$|[€$£]) ?)({_NUMBER})", re.IGNORECASE)
_MONEY_BEHIND = re.compile(rf"({_NUMBER}) ?(?:([€$£])|(EUR|USD|GBP|euros?|dollars?|pounds? sterling)\b)", re.IGNORECASE)

_UNITS = {
    "percent": "% percent per\u00a0cent prozent",
    "kilometers": "km kilometer kilometers kilometre kilometres",
    "meters": "m meter meters metre metres",
    "centimeters": "cm centimeter centimeters centimetre centimetres",
    "millimeters": "mm millimeter millimeters millimetre millimetres",
    "miles": "mi mile miles",
    "kilograms": "kg kilo kilos kilogram kilograms",
    "grams": "g gram grams",
    "milligrams": "mg milligram milligrams",
    "liters": "l liter liters litre litres",
    "milliliters": "ml milliliter milliliters millilitre millilitres",
    "gigabytes": "gb gigabyte gigabytes",
    "megabytes": "mb megabyte megabytes",
    "kilobytes": "kb kilobyte kilobytes",
    "seconds": "s sec secs second seconds",
    "minutes": "min mins minute minutes",
    "hours": "h hr hrs hour hours",
    "days": "day days",
    "weeks": "week weeks",
    "months": "month months",
    "years": "year years yrs",
    "degrees celsius": "°c",
    "degrees": "° degree degrees",
    "watts": "w watt watts",
    "kilowatts": "kw kilowatt kilowatts",
}
_UNIT_OF = {form: unit for unit, forms in _UNITS.items() for form in forms.split()}
_UNIT = re.compile(
    rf"({_NUMBER})(?: ?({'|'.join(map(re.escape, sorted(_UNIT_OF, key=len, reverse=True)))})(?!\w)(?!'s))",
    re.IGNORECASE,
)
_RATE = re.compile(
    r"([€$£] ?\d\S*|\d\S*(?: [a-z]+){1,3}|\bonce|\btwice|\btimes) (?:an?|each|every) "
    r"(?=(?:hour|day|night|week|month|year)\b)",
    re.IGNORECASE,
)
_LONE = re.compile(
    r"\b(?:a|one) (?=(?:day|week|month|year|minute|second(?! (?!and\b|or\b|later\b)\w)|metre|kilometre|litre)\b)",
    re.IGNORECASE,
)
_AND_A_HALF = re.compile(r"\b(one|\d+)(?: and a half| 1/2)\b(?!/)", re.IGNORECASE)
_PHRASES = [
    (re.compile(rf"\b(?:{form})\b", re.IGNORECASE), plain)
    for form, plain in (
        ("half an hour", "30 minutes"),
        ("a quarter of an hour", "15 minutes"),
        ("an hour and a half", "90 minutes"),
        ("1[.,]5 hours?", "90 minutes"),
        ("an hour", "1 hours"),
        ("a fortnight", "2 weeks"),
        ("half a dozen", "6"),
        ("a dozen", "12"),
        ("twice", "2 times"),
        ("per cent", "percent"),
        ("can(?:no|')t", "can not"),
        ("won't", "will not"),
        ("shan't", "shall not"),
        ("ain't", "is not"),
    )
]
_NOT = re.compile(r"n't\b", re.IGNORECASE)
_DECIMAL_ZEROS = re.compile(r"(?<![\d.,])(\d+)[.,]00?(?![\d.,]*\d)|(?<![\d.,])(\d+[.,]\d)0(?!\d)")


def canonical(text: str) -> str:
    """The text in that form. Case, sentences and what else stands there stay as they are."""
    text = of_one_width(text).replace("\u2019", "'").replace("\u2018", "'")
    language = language_of(text)
    text = in_words(text)
    text = in_digits(text) if language == "en" else in_digits_of(text, language)
    text = _RATE.sub(r"\1 per ", text)
    text = _AND_A_HALF.sub(lambda found: f"{1 if found[1].lower() == 'one' else found[1]}.5", text)
    for form, plain in _PHRASES:
        text = form.sub(plain, text)
    text = _NOT.sub(" not", text)
    text = _ISO_DATE.sub(_iso, text)
    text = _DOTTED_DATE.sub(lambda found: _date(found[1], MONTHS[int(found[2]) - 1], found[3]), text)
    text = _MONTH_NUMBER.sub(lambda found: f"{MONTHS[int(found[1]) - 1]} {found[2]}", text)
    text = _MONTH_FIRST.sub(lambda found: _date(found[2], found[1], found[3]), text)
    text = _DAY_FIRST.sub(lambda found: _date(found[1], found[2], found[3]), text)
    text = _MONTH_AND_YEAR.sub(lambda found: f"{_MONTH_OF[found[1].lower()]} {found[2]}", text)
    text = _SPOKEN.sub(_spoken, text)
    text = _CLOCK.sub(_clock, text)
    text = _DAY_CLOCK.sub(lambda found: f"{int(found[1])}:{found[2] or found[3] or '00'}", text)
    text = _PADDED.sub(r"\1", _MIDNIGHT.sub("0:00", _NOON.sub("12:00", text)))
    text = _MONEY_BEFORE.sub(lambda found: f"{found[3]} {_CURRENCIES[(found[1] or found[2]).lower()]}", text)
    text = _MONEY_BEHIND.sub(lambda found: f"{found[1]} {_CURRENCIES[(found[2] or found[3]).lower()]}", text)
    text = _LONE.sub("1 ", text)
    text = _UNIT.sub(lambda found: f"{found[1]} {_UNIT_OF[found[2].lower()]}", text)
    return _DECIMAL_ZEROS.sub(lambda found: found[1] or found[2], text)


def _iso(found: re.Match[str]) -> str:
    month = int(found[2])
    return f"{int(found[3])} {MONTHS[month - 1]} {found[1]}" if 1 <= month <= 12 else found[0]


def _date(day: str, month: str, year: str | None) -> str:
    plain = f"{int(day)} {_MONTH_OF[month.lower()]}"
    return f"{plain} {year}" if year else plain


def _hour(hour: int, half: str | None) -> int:
    half = (half or "").lower().replace(".", "")
    if half in ("pm", "in the afternoon", "in the evening") or (half == "at night" and hour >= 6):
        return hour + 12 if hour < 12 else hour
    return 0 if hour == 12 and half else hour


def _spoken(found: re.Match[str]) -> str:
    minutes = 30 if found[1].lower() == "half past" else int(found[2] or 15)
    hour = _hour(int(found[3]), found[4])
    if found[1].lower().endswith("to"):
        hour, minutes = (hour - 1) % 24, 60 - minutes
    return f"{hour}:{minutes:02d}{_end_of(found)}"


def _end_of(found: re.Match[str]) -> str:
    """The end of a sentence that "p.m." has swallowed."""
    behind = found.string[found.end() :].lstrip()
    return "." if found[0].endswith(".") and (not behind or behind[0].isupper()) else ""


def _clock(found: re.Match[str]) -> str:
    half = found[4] if found[3].lower().startswith("o'") else found[3]
    return f"{_hour(int(found[1]), half)}:{found[2] or '00'}{_end_of(found)}"
