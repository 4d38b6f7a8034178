"""How two questions differ in their words, where a sentence vector sees no difference: the features of a proposal.

Word lists are English; of another language they say nothing, and the other features decide.
"""

from __future__ import annotations

import math
import re

import msgspec

FEATURES = (
    "cosine",
    "near",
    "share",
    "margin",
    "good",
    "bad",
    "guard",
    "overlap",
    "swapped",
    "reordered",
    "renamed",
    "length",
    "unopposed",
)
"""What a proposal's numbers are, in order. `near`: five times what the cosine is above 0.8. `share`: of the vote.
`margin`: cosine above the nearest other answer's. `good`, `bad`: log(1 + labels of the entry). `unopposed`: -log of the
other answers' share of the vote, plus 0.01. The rest: `Difference`.
"""

MAX_CHARACTERS = 2_000
"""Words beyond are not looked at: the encoder does not see them either, and the time of a look-up stays bounded."""

_WORD = re.compile(r"\d+(?:[.,:/]\d+)*|[^\W\d_]+(?:'[a-z]+)?|[+#%$€£]")

_CAPITAL = "A-Z\u00c0-\u00d6\u00d8-\u00de\u0391-\u03a9\u0410-\u042f"
_NAME = re.compile(rf"[{_CAPITAL}](?:(?<=[^.!?\s] .)(?!(?<=I)\b)[^\W\d_]*|[{_CAPITAL}]+\b)")
"""A word that begins with a capital and no sentence, or has nothing but capitals, and is not "I"."""

_NUMBER_WORDS = "two three four five six seven eight nine ten eleven twelve"

_NEGATION_WORDS = (
    "not no never without cannot cant nor none neither nothing unable except excluding dont doesnt didnt isnt wont "
    "havent hasnt can't don't doesn't didn't isn't won't wouldn't shouldn't couldn't aren't wasn't weren't haven't "
    "hasn't"
)

# Articles, auxiliaries, pronouns, and what a question is wrapped in.
_FILLER_WORDS = (
    "a an the is are was were be been being am do does did to of in on at for from by with and or i me my mine we our "
    "you your it its this that these those what which who whom how when where why can could would should will shall "
    "may might please tell show give need want have has had get got let about any there if so just as into than then "
    "s t ve m re d ll know some help"
)

_OPPOSITES = (
    "increase/decrease/reduce raise/lower high/low higher/lower highest/lowest maximum/minimum max/min before/after "
    "first/last oldest/youngest old/young/new older/younger ascending/descending/random enable/disable "
    "enabled/disabled on/off open/close start/stop begin/end buy/sell add/remove with/without include/exclude "
    "including/excluding in/out up/down hot/cold best/worst good/bad more/less most/least gain/lose/loss win/lose "
    "import/export encrypt/decrypt encode/decode lock/unlock send/receive deposit/withdraw/withdrawal credit/debit "
    "cheap/expensive cheapest/expensive largest/smallest biggest/smallest big/small large/small long/short "
    "longest/shortest fast/slow fastest/slowest early/late earliest/latest inside/outside internal/external "
    "north/south east/west left/right true/false accept/reject/decline allow/deny/block push/pull upload/download "
    "login/logout install/uninstall subscribe/unsubscribe freeze/unfreeze activate/deactivate/cancel male/female "
    "men/women man/woman boy/girl hire/fire love/hate like/dislike trust/distrust safe/dangerous legal/illegal "
    "possible/impossible able/unable am/pm morning/evening day/night advantages/disadvantages pros/cons "
    "strength/weakness positive/negative sender/recipient borrow/lend plus/minus multiply/divide public/private "
    "single/married winter/summer always/never/sometimes all/none shrink/grow same/different inner/outer top/bottom "
    "cheaper/expensive/dearer faster/slower smaller/larger/bigger better/worse earlier/later longer/shorter "
    "stronger/weaker warmer/colder heavier/lighter nearer/farther front/back arrive/depart "
    "arrival/departure sunrise/sunset rise/fall"
)

_ENDINGS = ("ing", "ed", "es", "s")
_NUMBERS = {word: str(number) for number, word in enumerate(_NUMBER_WORDS.split(), start=2)}
_NEGATIONS = frozenset(_NEGATION_WORDS.split())
_FILLERS = frozenset(_FILLER_WORDS.split())


class Difference(msgspec.Struct, frozen=True):
    """What the words of two questions tell.

    `opposed`: one has a word, the other its opposite. `guarded`: that, or numbers or negation differ.
    `overlap`: shared content words of all, 0..1. `swapped`: one content word stands for another and the rest is shared.
    `reordered`: the same words in another order. `renamed`: one has a name that the other does not have, or names of
    both stand in another order. `length`: log(1 + content words of the shorter); a question of few words says little,
    and what is near it may ask for much else.
    """

    opposed: bool
    guarded: bool
    overlap: float
    swapped: bool
    reordered: bool
    renamed: bool
    length: float


class Wording:
    """The words of a question, taken apart once."""

    __slots__ = ("content", "is_negated", "names", "numbers", "order", "words")

    def __init__(self, text: str) -> None:
        text = text[:MAX_CHARACTERS]
        tokens = _WORD.findall(text.lower().replace("\u2019", "'"))
        self.names = [] if text.isupper() else [name.lower() for name in _NAME.findall(text)]
        self.words = frozenset(tokens)
        self.order = [token for token in tokens if token not in _FILLERS]
        # Lists inside, since generators take half as long again, and this is a third of a look-up's time.
        self.numbers = frozenset(
            [_plain(_NUMBERS.get(word, word)) for word in self.words if word[0].isdigit() or word in _NUMBERS]
        )
        self.is_negated = len([token for token in tokens if token in _NEGATIONS]) % 2 == 1
        self.content = frozenset(
            [_stem(word) for word in self.order if not word[0].isdigit() and word not in _NEGATIONS]
        )


def difference(one: Wording, two: Wording) -> Difference:
    """How the words of two questions differ; the order of the two does not matter."""
    shared = one.content & two.content
    only_one, only_two = one.content - shared, two.content - shared
    num_all = len(shared) + len(only_one) + len(only_two)
    opposed = are_opposed(one.words, two.words)
    return Difference(
        opposed=opposed,
        guarded=opposed or one.numbers != two.numbers or one.is_negated != two.is_negated,
        overlap=len(shared) / num_all if num_all else 1.0,
        swapped=bool(shared) and len(only_one) == len(only_two) == 1,
        renamed=_is_renamed(one, two),
        reordered=not only_one and not only_two and _is_reordered(one, two),
        length=math.log1p(min(len(one.content), len(two.content))),
    )


def _is_renamed(one: Wording, two: Wording) -> bool:
    if not (one.names or two.names):
        return False
    if not (_are_said(one.names, two.words) and _are_said(two.names, one.words)):
        return True
    return [name for name in one.names if name in two.names] != [name for name in two.names if name in one.names]


def _are_said(names: list[str], words: frozenset[str]) -> bool:
    return all(name in words or f"{name}'s" in words for name in names)


def _is_reordered(one: Wording, two: Wording) -> bool:
    if one.order == two.order:
        return False
    # Words that only one of them has, such as a plural, are no matter of order.
    return [word for word in one.order if word in two.words] != [word for word in two.order if word in one.words]


def are_opposed(words: frozenset[str], other_words: frozenset[str]) -> bool:
    """Whether one has a word and the other its opposite, of `Wording.words`."""
    others = other_words - words
    return any(
        not opposites.isdisjoint(others)
        for word in words - other_words
        if (opposites := _OPPOSITE_OF.get(word)) is not None
    )


def _opposite_of() -> dict[str, frozenset[str]]:
    opposites: dict[str, frozenset[str]] = {}
    for group in _OPPOSITES.split():
        first, *others = group.split("/")
        opposites[first] = opposites.get(first, frozenset()) | frozenset(others)
        for other in others:
            opposites[other] = opposites.get(other, frozenset()) | {first}
    return opposites


_OPPOSITE_OF = _opposite_of()


def _stem(word: str) -> str:
    if word.endswith(_ENDINGS):
        for ending in _ENDINGS:
            if word.endswith(ending) and len(word) - len(ending) >= 3:
                return word[: -len(ending)]
    return word


def _plain(number: str) -> str:
    # 1,000 and 1000 are one number, 5 and 5.0 too; dates and times stay as written.
    try:
        return repr(float(number.replace(",", "")))
    except ValueError:
        return number
