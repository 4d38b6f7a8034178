"""Yes/no questions that a text asks and answers itself, and fields that say yes or no, as statements.

"Can you pay by card? No" is "You can not pay by card." What is asked and what is answered stand far apart for whoever
reads them one by one: to a head, the question with either answer was as near to one statement as to its denial.
"""

from __future__ import annotations

import re

_AUXILIARY = "can|could|may|might|must|should|shall|will|would|do|does|did|is|are|am|was|were|has|have|had|need"
_BEGINS_AS_QUESTION = re.compile(rf"(?:{_AUXILIARY}|what|which|who|whom|whose|when|where|why|how)\b", re.IGNORECASE)
_NAMES_NOTHING = re.compile(
    r"(?:q|question|a|(?:short )?answer|in short|note|tip|hint|verdict|conclusion|summary)", re.IGNORECASE
)
_MAX_FRAGMENT_WORDS = 8

ITEM_MARK = r"(?:[-*•+]|\d{1,2}[.)])"
"""What an item of a list begins with."""
_BEGIN = rf"(?P<begin>^[ \t]*(?:{ITEM_MARK}[ \t]+)?|(?<=[.!:])\s+)"
_SAID = r"(?P<said>yes|no|true|false|✓|✔|✅|✗|✘|❌)(?!\w)"
_AND_MORE = (
    r"(?:(?:[,;]|[ \t][-\u2013\u2014])[ \t]*(?P<more>[^.!?\n]+))?"  # ", but only until nine"
    r"(?:[.!]|(?=[ \t]*$|\s+(?-i:[A-Z(])))"
)
_ASKED = re.compile(
    rf"{_BEGIN}(?:q(?:uestion)?[:.][ \t]*)?(?P<asked>[^.?!:\n]{{2,160}})\?\s*(?:a(?:nswer)?[:.]\s*)?{_SAID}{_AND_MORE}",
    re.IGNORECASE | re.MULTILINE,
)
_FIELD = re.compile(
    rf"{_BEGIN}(?P<asked>[^.?!:\n]{{2,80}}?)(?::|[ \t][-\u2013\u2014])[ \t]*{_SAID}{_AND_MORE}",
    re.IGNORECASE | re.MULTILINE,
)
_QUESTION = re.compile(
    rf"(?P<does>{_AUXILIARY})\s+(?!not\b)(?P<who>(?:(?:the|an?|my|your|our|their|this|that|these|those|all)\s+)?\S+)"
    rf"\s+(?P<what>.+)",
    re.IGNORECASE | re.DOTALL,
)
_SAID_AGAIN = re.compile(rf"\w+ (?:{_AUXILIARY})(?: not)?", re.IGNORECASE)
_OF_THE_READER = {"i": "you", "am": "are", "my": "your", "me": "you", "myself": "yourself", "mine": "yours"}
_READER = re.compile(rf"\b(?:{'|'.join(_OF_THE_READER)})\b", re.IGNORECASE)


def stated(text: str) -> str:
    """The text with these turned into statements; `canonical`, without marks, in English."""
    return _FIELD.sub(_field, _ASKED.sub(_answered, text))


def _answered(found: re.Match[str]) -> str:
    asked = found["asked"].strip()
    question = _QUESTION.fullmatch(asked)
    if question is None:
        is_fragment = len(asked.split()) <= _MAX_FRAGMENT_WORDS and _BEGINS_AS_QUESTION.match(asked) is None
        return _said_of(found, asked) if is_fragment else found[0]
    does = question["does"].lower()
    if not _is_yes(found):
        # Who asks "must I" and hears no is not forbidden to.
        does = f"{'need' if does == 'must' else does} not"
    statement = f"{question['who']} {does} {question['what']}"
    # Whoever asks "may I" is who reads the answer.
    return _put(found, _READER.sub(lambda word: _OF_THE_READER[word[0].lower()], statement))


def _field(found: re.Match[str]) -> str:
    asked = found["asked"].strip()
    return found[0] if _NAMES_NOTHING.fullmatch(asked) else _said_of(found, asked)


def _said_of(found: re.Match[str], matter: str) -> str:
    is_word = matter[:1].isupper() and matter[1:2].islower()
    matter = matter[:1].lower() + matter[1:] if is_word else matter
    return _put(found, f"Yes, {matter}" if _is_yes(found) else f"No, not {matter}")


def _put(found: re.Match[str], statement: str) -> str:
    more = (found["more"] or "").strip()
    if _SAID_AGAIN.fullmatch(more):
        more = ""
    sentences = [f"{each[0].upper()}{each[1:]}." for each in (statement, more) if each]
    return f"{found['begin']}{' '.join(sentences)}"


def _is_yes(found: re.Match[str]) -> bool:
    return found["said"].lower() in ("yes", "true", "✓", "✔", "✅")
