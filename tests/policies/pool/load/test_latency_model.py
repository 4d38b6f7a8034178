"""The latency model: what it learns, how it judges itself, and what nonsense does to it."""

from __future__ import annotations

import json
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pool.load.latency_model import MAX_SECONDS, Features, LatencyModel, features

SOME = features(0, 1000, 1000, 3, 5000)
ODD = [math.nan, math.inf, -math.inf, -1.0, -1e-9, MAX_SECONDS + 1, 1e300]


def _truth(x: Features, speed: float) -> float:
    """A backend: 50 ms and `speed` seconds for 1000 tokens in front, 4 ms a stream."""
    return 0.05 + speed * x[1] + 0.8 * x[3]


def _random_features(random: Random) -> Features:
    tokens = random.randint(10, 20_000)
    return features(random.choice([0, random.randint(0, 30_000)]), tokens, tokens, random.randint(0, 60), 0)


def _taught(speed: float, number: int, seed: int = 1, model: LatencyModel | None = None) -> LatencyModel:
    random, model = Random(seed), model or LatencyModel()
    for _ in range(number):
        x = _random_features(random)
        model.observe(x, _truth(x, speed) * random.uniform(0.9, 1.1))
    return model


def test_latency_model_begins_unseen_and_is_known_after_twenty_first_tokens() -> None:
    """It says itself when it can be asked."""
    model = LatencyModel()
    doubts = []
    for _ in range(20):
        doubts.append(model.doubt)
        model.observe(SOME, 0.2)

    assert doubts == ["unseen"] * 20
    assert model.doubt is None


@pytest.mark.parametrize("speed", [0.003, 0.03, 0.3], ids=["fast", "as expected", "slow"])
def test_latency_model_learns_a_backend_whatever_its_speed(speed: float) -> None:
    """After 400 first tokens its predictions are off by about the noise, and the cost of a token is found."""
    model = _taught(speed, 400)
    random = Random(2)
    off = sorted(abs(model.predict(x) / _truth(x, speed) - 1) for x in (_random_features(random) for _ in range(200)))

    assert off[100] < 0.1
    assert model.seconds_per_token == pytest.approx(speed / 1000, rel=0.15)
    assert model.error < 0.15


def test_latency_model_follows_a_backend_that_becomes_slower() -> None:
    """What it learned long ago fades."""
    model = _taught(0.02, 500)
    model = _taught(0.06, 1500, seed=3, model=model)

    assert model.seconds_per_token == pytest.approx(0.06e-3, rel=0.3)


def test_latency_model_one_stall_moves_a_prediction_little() -> None:
    """A minute's silence once does not make a backend slow."""
    model = _taught(0.03, 200)
    before = model.predict(SOME)
    model.observe(SOME, 60.0)

    assert model.predict(SOME) == pytest.approx(before, rel=0.35)


def test_latency_model_residual_finds_the_95th_percentile() -> None:
    """Where one first token in ten takes twice as long, the residual goes to two; it stays within 1 and 2.5."""
    model, random = _taught(0.03, 300), Random(4)
    for _ in range(3000):
        x = _random_features(random)
        model.observe(x, model.predict(x) * (2.0 if random.random() < 0.1 else 1.0))

    assert 1.4 < model.residual <= 2.2


@given(st.lists(st.sampled_from([0.0, 0.5, 100.0, 3000.0, *ODD]), max_size=60), st.integers(0, 5))
def test_latency_model_whatever_it_is_told_its_numbers_stay_numbers(seconds: list[float], seed: int) -> None:
    """No order of sense and nonsense leaves it with anything but finite predictions and bounded estimates."""
    model, random = LatencyModel(), Random(seed)
    for each in seconds:
        model.observe(_random_features(random), each)
        model.observe_stream(random.choice([0, 1, 2, 10**9]), each, random.choice([0, 500, 10**7]))
        model.observe_output(random.choice([-5, 0, 3, 10**12]))

    assert 0 <= model.predict(SOME) <= MAX_SECONDS
    assert 1 <= model.residual <= 2.5
    assert 0 < model.seconds_per_token < math.inf
    assert 0 <= model.seconds_between_tokens <= MAX_SECONDS
    assert 0 <= model.gap_s(10**6) < math.inf
    assert 0 < model.output_tokens < 1e8
    assert model.num_nonsense == sum(each in ODD or math.isnan(each) for each in seconds) or model.doubt == "nonsense"


@pytest.mark.parametrize("seconds", ODD)
def test_latency_model_drops_and_counts_what_cannot_be(seconds: float) -> None:
    """One impossible observation changes nothing but the count."""
    model = _taught(0.03, 50)
    before = model.predict(SOME)
    model.observe(SOME, seconds)

    assert (model.predict(SOME), model.num_nonsense, model.doubt) == (before, 1, None)


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("value", [math.nan, -1.0, math.inf, 1e30])
def test_latency_model_refuses_impossible_features(place: int, value: float) -> None:
    """What an attempt met is checked like what it took."""
    model = _taught(0.03, 50)
    x = [*SOME[:place], value, *SOME[place + 1 :]]
    model.observe((x[0], x[1], x[2], x[3], x[4], x[5]), 0.3)

    assert model.num_nonsense == 1


def test_latency_model_fed_nonsense_in_a_row_forgets_and_says_so() -> None:
    """A clock that runs backwards is no teacher; sense makes it known again."""
    model = _taught(0.03, 50)
    for _ in range(8):
        model.observe(SOME, -1.0)
    told = model.doubt
    _taught(0.03, 20, model=model)

    assert told == "nonsense"
    assert model.doubt is None


def test_latency_model_constant_features_do_not_run_away() -> None:
    """Forgetting what never moves would make its variance grow without end."""
    model = LatencyModel()
    for _ in range(20_000):
        model.observe(SOME, 0.3)

    assert model.predict(SOME) == pytest.approx(0.3, rel=0.02)
    assert max(abs(value) for row in model.dump()["covariance"] for value in row) < 10


def test_latency_model_streams_and_outputs_are_running_means() -> None:
    """Gaps begin with the first stream; a stream of one token has none."""
    model = LatencyModel()
    model.observe_stream(1, 5.0, 1000)
    assert model.gap_s(1000) == 0.0
    model.observe_stream(11, 0.2, 1000)
    for _ in range(2000):
        model.observe_output(50)

    assert model.seconds_between_tokens == pytest.approx(0.02)
    assert model.output_tokens == pytest.approx(50, rel=0.01)


def test_latency_model_gap_grows_with_what_the_backend_holds() -> None:
    """Twice as many tokens to read in each step make a step twice as long; it is kept over a restart."""
    model, copy = LatencyModel(), LatencyModel()
    for _ in range(300):
        model.observe_stream(11, 0.2, 1000)
    copy.load(model.dump())

    for each in (model, copy):
        assert [each.gap_s(held) for held in (1000, 2000, 0)] == pytest.approx([0.02, 0.04, 0.0])


def test_latency_model_dump_and_load_give_the_same_model() -> None:
    """Through JSON, as it is kept on disk; it goes on learning the same."""
    model, copy = _taught(0.03, 100), LatencyModel()
    copy.load(json.loads(json.dumps(model.dump())))
    _taught(0.03, 10, seed=9, model=model)
    _taught(0.03, 10, seed=9, model=copy)

    assert copy.dump() == model.dump()
    assert copy.predict(SOME) == model.predict(SOME)
    assert copy.doubt is None


@pytest.mark.parametrize(
    "change",
    [
        {"weights": [1.0]},
        {"weights": [math.nan] * 6},
        {"weights": [1e300] * 6},
        {"weights": "abcdef"},
        {"covariance": [[0.0] * 6] * 5},
        {"covariance": [[math.inf] * 6] * 6},
        {"covariance": 7},
        {"observations": -1},
        {"observations": "many"},
        {"output_tokens": None},
        {"seconds_between_tokens": -0.1},
    ],
    ids=str,
)
def test_latency_model_load_refuses_what_no_model_wrote(change: dict[str, object]) -> None:
    """A damaged file is an error, and the model stays as it was."""
    model = _taught(0.03, 30)
    before = model.dump()

    with pytest.raises(ValueError, match="not a saved latency model"):
        model.load({**before, **change})
    assert model.dump() == before


def test_latency_model_load_refuses_missing_parts() -> None:
    """An empty object is no model."""
    with pytest.raises(ValueError, match="weights"):
        LatencyModel().load({})


def test_latency_model_five_first_tokens_far_too_late_degrade_until_one_is_in_time() -> None:
    """Four are not enough, and neither is what a prediction that is a bit off makes of them."""
    model = _taught(0.03, 300)
    limit_s = 4 * model.residual * model.predict(SOME)

    seen = []
    for _ in range(4):
        model.observe(SOME, 100 * limit_s)
    seen.append(model.is_degraded)
    model.observe(SOME, 100 * limit_s)
    seen.append(model.is_degraded)
    model.observe(SOME, model.predict(SOME))
    seen.append(model.is_degraded)
    for _ in range(5):
        model.observe(SOME, 3 * model.residual * model.predict(SOME))
    seen.append(model.is_degraded)

    assert seen == [False, True, False, False]


def test_latency_model_short_first_tokens_are_not_late_for_a_network_that_stutters() -> None:
    """What was to take two milliseconds and takes fifty says nothing of the backend."""
    model = LatencyModel()
    x = features(0, 1, 40, 0, 0)
    for _ in range(300):
        model.observe(x, 0.002)
    for _ in range(10):
        model.observe(x, 0.05)

    assert not model.is_degraded
