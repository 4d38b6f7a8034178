"""A user's log through the semantic cache: what is read of it, what would have been served, what is told."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest

from policies.cache.semantic.learning.comparators import AnswerVerdict
from policies.cache.semantic.log_replay.exchanges import BadLogLine, LoggedExchange, read_log
from policies.cache.semantic.log_replay.figures import THRESHOLDS, LogReport, Rates, as_json, as_text, report
from policies.cache.semantic.log_replay.plot import as_svg
from policies.cache.semantic.log_replay.replay import LogReplay, LogReplayResult
from policies.cache.settings import CachePolicy
from tests.support.policy.semantic import WordEncoder

RESET = "how do I reset my password please"
RESET_TOO = "how do I reset the password please"
CANCEL = "what is your cancellation policy for groups"
BUTTON = "Press the button named Forgot."
DAYS = "Groups cancel ten days before arrival, or pay 50 euros."


def exchange(
    text: str, answer: str, *, created: float | None = None, finish: str = "stop", **fields: Any
) -> LoggedExchange:
    """One exchange that may be answered semantically; `fields` are its tenant and key, or go into the request."""
    whose = {name: fields.pop(name) for name in ("tenant", "key") if name in fields}
    request = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": text}], **fields}
    message = {"role": "assistant", "content": answer}
    response: dict[str, Any] = {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    if created is not None:
        response["created"] = created
    return LoggedExchange(request, response, **whose)


def written(path: Path, *lines: object) -> Path:
    """A log of these lines: text as it is, all else as JSON."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


async def replayed(exchanges: Sequence[LoggedExchange], **cache: Any) -> LogReplayResult:
    """These through a cache with these settings."""
    policy = CachePolicy.model_validate({**cache, "semantic": cache.get("semantic", {})})
    return await LogReplay(policy, WordEncoder(), route="help", max_bytes=1 << 24).run(exchanges, lambda done: None)


def told(
    seen: LogReplayResult, *, skipped: int = 0, route: str = "help", scope: str = "tenant", **semantic: Any
) -> LogReport:
    """The report of a replay under a policy with these settings."""
    return report(seen, route, CachePolicy.model_validate({"scope": scope, "semantic": semantic}), skipped=skipped)


def traffic(num: int, *, is_treacherous: bool = False) -> list[LoggedExchange]:
    """Questions of ten subjects in many wordings, with an answer each; `is_treacherous`: near ones differ."""
    random = Random(5)
    subjects = [f"subject{chr(97 + number)} matter{chr(97 + number)} thing{chr(97 + number)}" for number in range(10)]
    made = []
    for _ in range(num):
        number = random.randrange(10)
        words = [*subjects[number].split(), *random.sample(["please", "kindly", "now", "then", "sir", "well"], 2)]
        random.shuffle(words)
        answer = f"Take {words[0]} {random.getrandbits(40)}" if is_treacherous else f"Answer of {subjects[number]}"
        made.append(exchange("tell me of " + " ".join(words), answer))
    return made


def test_read_log_plain_and_gzip_are_the_same(tmp_path: Path) -> None:
    """Which one it is is seen from the file, not from its name; blank lines are nothing."""
    line = {"request": {"messages": []}, "response": {"choices": [], "created": 7}, "tenant": "red", "key": "k"}
    plain = written(tmp_path / "log", line, "", line)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(plain.read_bytes()))

    read = list(read_log(plain))
    assert read == list(read_log(packed))
    assert read == [LoggedExchange(line["request"], line["response"], "red", "k")] * 2  # type: ignore[arg-type]
    assert [one.created for one in read if isinstance(one, LoggedExchange)] == [7.0, 7.0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"response": {"choices": []}}', "`request`"),
        ('{"request": {}, "response": {"choices": []}}', "`messages` - at `$.request`"),
        ('{"request": {"messages": [3]}, "response": {"choices": []}}', "`$.request.messages[0]`"),
        ('{"request": {"messages": [], "temperature": "0"}, "response": {"choices": []}}', "`$.request.temperature`"),
        ('{"request": {"messages": []}, "response": {"error": {}}}', "`choices` - at `$.response`"),
        ('{"request": {"messages": []}, "response": {"choices": []}, "tenant": 3}', "`$.tenant`"),
        ("hello", "malformed"),
        ("[" * 20_000, "line 2: "),
    ],
)
def test_read_log_bad_line_is_named_with_its_field(tmp_path: Path, line: str, said: str) -> None:
    """The lines around it are read."""
    good: dict[str, dict[str, list[str]]] = {"request": {"messages": []}, "response": {"choices": []}}
    before, bad, after = read_log(written(tmp_path / "log", good, line, good))

    assert isinstance(before, LoggedExchange)
    assert isinstance(after, LoggedExchange)
    assert isinstance(bad, BadLogLine)
    assert "line 2: " in str(bad)
    assert said in str(bad)


def test_read_log_that_is_no_text_is_bad_lines(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are a line's problem."""
    path = tmp_path / "log"
    path.write_bytes(b'{"request": {"messages": [], "model": "\xff"}, "response": {"choices": []}}\n')

    assert [type(read) for read in read_log(path)] == [BadLogLine]


def test_read_log_cut_off_gzip_says_where(tmp_path: Path) -> None:
    """Half a file is no log: the figures would be those of another one."""
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b'{"request": 1}\n' * 9)[:-10])

    with pytest.raises(BadLogLine, match=r"after line \d+: the gzip file is damaged or cut off"):
        list(read_log(path))


async def test_replay_splits_the_log_into_exact_left_alone_and_looked_up() -> None:
    """Each exchange is counted once, and those left alone with their reason."""
    seen = await replayed(
        [
            exchange(RESET, BUTTON),
            exchange(RESET, BUTTON),
            exchange(RESET_TOO, BUTTON, temperature=1),
            exchange("who may write to jane@example.org", "Fine."),
            exchange(CANCEL, DAYS),
        ]
    )

    assert (seen.num_exchanges, seen.num_exact, len(seen.served)) == (5, 1, 2)
    assert seen.left_alone == {"temperature": 1, "personal": 1}
    assert seen.missed == {"no_candidate": 1, "learning": 1} or seen.missed == {"no_candidate": 2}


async def test_replay_static_curve_counts_right_wrong_and_unknown() -> None:
    """Three near questions: one answered alike, one otherwise, one with an answer that was cut off."""
    seen = await replayed(
        [
            exchange(RESET, BUTTON),
            exchange(RESET_TOO, BUTTON),
            exchange(RESET + " sir", DAYS),
            exchange(RESET_TOO + " sir", "Press the", finish="length"),
        ]
    )
    by_threshold = {point.threshold: point.rates for point in told(seen).curve}

    assert [one.verdict for one in seen.seen] == ["unknown", AnswerVerdict.SAME, AnswerVerdict.DIFFERENT, "unknown"]
    assert by_threshold[0.7] == Rates(4, 0.75, 0.25, 0.25)
    assert by_threshold[1.0] == Rates(4, 0.0, 0.0, 0.0)


async def test_replay_answers_expire_by_the_time_of_the_log() -> None:
    """A day between two exchanges is a day, however fast they are replayed."""
    near = [exchange(RESET, BUTTON, created=1e9), exchange(RESET_TOO, BUTTON, created=1e9 + 60)]
    far = [near[0], exchange(RESET_TOO, BUTTON, created=1e9 + 90_000), exchange(RESET, BUTTON)]

    assert (await replayed(near)).seen[1].similarity is not None
    late = await replayed(far)
    assert late.num_exact == 0
    assert [one.similarity is not None for one in late.seen] == [False, False, True]


async def test_replay_tenants_of_the_log_share_nothing() -> None:
    """What the log says of whose call it was is believed."""
    exchanges = [exchange(RESET, BUTTON, tenant="red"), exchange(RESET_TOO, BUTTON, tenant="blue")]

    assert [one.similarity for one in (await replayed(exchanges)).seen] == [None, None]
    other_key = [exchange(RESET, BUTTON, key="j"), exchange(RESET_TOO, BUTTON, key="k")]
    assert (await replayed(other_key, scope="global")).seen[1].similarity is None, "nobody has confirmed it"
    same_key = [exchange(RESET, BUTTON, key="k"), exchange(RESET_TOO, BUTTON, key="k")]
    assert (await replayed(same_key, scope="global")).seen[1].similarity is not None


async def test_replay_of_regular_traffic_serves_rightly_after_learning() -> None:
    """The figures add up, and are the same every time."""
    exchanges = traffic(500)
    seen = await replayed(exchanges)
    made = told(seen)

    assert seen.num_exact + sum(seen.left_alone.values()) + len(seen.served) == 500
    assert made.verified.lookups == len(seen.seen)
    assert made.verified.hits > 0.05
    assert made.verified.wrong == 0.0
    assert made.first_served is not None
    assert made.first_served > 100
    assert 0.0 < made.wrong_upper_95 < 0.05
    assert made.missed["learning"] >= 99
    assert told(await replayed(exchanges)) == made


async def test_replay_of_traffic_that_never_says_the_same_serves_nothing() -> None:
    """Where every near question has another answer, thresholds are wrong, and the decision keeps silent."""
    made = told(await replayed(traffic(300, is_treacherous=True)))

    assert made.verified.hits <= 0.01
    assert made.curve[0].rates.hits > 0.5
    assert made.curve[0].rates.wrong + made.curve[0].rates.unknown == pytest.approx(made.curve[0].rates.hits)


async def test_replay_mode_of_the_policy_does_not_matter() -> None:
    """It says what `verified` would do, whether the policy observes, has it off, or names a threshold."""
    exchanges = traffic(250)
    results = [await replayed(exchanges, semantic={"mode": mode}) for mode in ("off", "observe", "verified", "static")]

    assert all(one.served == results[0].served for one in results)


async def test_report_tells_what_it_cannot_know() -> None:
    """Too few labels, answers that could not be compared, and a judge that was not asked are all said."""
    seen = await replayed([exchange(RESET, BUTTON), exchange(RESET_TOO, "Press what is called Forgot, on the left.")])
    judge = {"route": "judge", "model": "small"}
    made = told(seen, skipped=2, scope="key", judge=judge)
    text = as_text(made)

    assert "lines skipped                        2" in text
    assert "1 pairs of answers 1 could not be compared" in text
    assert "the log is too short" in text
    assert "judge was not asked" in text
    assert "names no tenants" in text
    assert "names no keys" in text
    assert json.loads(as_json(made))["notes"] == made.notes


async def test_replay_tells_how_the_log_words_the_same_answer_anew() -> None:
    """Calls made again in the very same words: to the letter, in others of the same, differently; nothing else is."""
    asked = [(RESET, BUTTON), (RESET, BUTTON.lower()), (RESET, BUTTON), (RESET, DAYS), (RESET_TOO, DAYS)]
    seen = await replayed([exchange(text, answer) for text, answer in asked])
    again = told(seen).again

    assert again is not None
    assert (again.asked, round(again.verbatim, 3), round(again.same, 3)) == (3, 0.333, 0.667)
    assert again.low < again.same < again.high
    assert "words its answers anew: of two of them to the very same call 66.67 %" in as_text(told(seen))
    verbatim = as_text(told(await replayed([exchange(RESET, BUTTON)] * 3)))
    assert "100.00 % were answered to the letter" in verbatim
    assert "No call was made twice" in as_text(told(await replayed([exchange(RESET, BUTTON)])))


async def test_report_expects_hits_by_how_far_parts_of_the_log_lie_apart() -> None:
    """What is even is sure; what comes and goes is not, though as much is served; too little tells nothing."""
    right, miss = AnswerVerdict.SAME, None
    even = told(LogReplayResult(served=[miss] * 400 + [right, miss] * 200)).expected
    waves = told(LogReplayResult(served=[miss] * 400 + ([right] * 40 + [miss] * 40) * 5)).expected
    short = told(LogReplayResult(served=[right] * 390)).expected

    assert even is not None
    assert waves is not None
    assert (even.low, even.hits, even.high) == (0.5, 0.5, 0.5)
    assert waves.hits == 0.5
    assert (waves.low, waves.high) == pytest.approx((0.12, 0.88), abs=0.01)
    assert short is None


async def test_report_of_nothing_looked_up_says_so() -> None:
    """A log that is all left alone has no rates."""
    made = told(await replayed([exchange(RESET, BUTTON, temperature=1)]))

    assert "temperature 1" in as_text(made)
    assert "nothing to tell" in as_text(made)
    assert ElementTree.fromstring(as_svg(made)).tag.endswith("svg")


@pytest.mark.parametrize("bound", [{"max_wrong_hit_rate": 0.01}, {"min_precision": 0.99}, {"max_wrong_hit_rate": 0.2}])
async def test_plot_is_a_picture_of_every_threshold_within_its_frame(bound: dict[str, Any]) -> None:
    """Well-formed, with nothing outside, names escaped, and the bound by name."""
    made = told(await replayed(traffic(250)), route='a<b & "c"', **bound)
    root = ElementTree.fromstring(as_svg(made))
    lines = [line.get("points", "").split() for line in root.iter("{http://www.w3.org/2000/svg}polyline")]
    places = [tuple(map(float, pair.split(","))) for points in lines for pair in points]

    assert [len(points) for points in lines[::2]] == [2, len(THRESHOLDS)]
    assert all(69.9 <= x <= 736.1 and 63.9 <= y <= 372.1 for x, y in places)
    texts = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "".join(f"{name}: {share:g}" for name, share in bound.items()) in texts
    assert any('a<b & "c"' in text for text in texts)


async def test_plot_names_of_thresholds_do_not_lie_on_each_other() -> None:
    """Where points crowd some go without."""
    root = ElementTree.fromstring(as_svg(told(await replayed(traffic(250)))))
    texts = list(root.iter("{http://www.w3.org/2000/svg}text"))
    names = [(float(text.attrib["x"]), float(text.attrib["y"])) for text in texts if text.get("paint-order")]

    assert names
    assert all(abs(x - u) >= 30 or abs(y - v) >= 12 for (x, y), (u, v) in combinations(names, 2))
