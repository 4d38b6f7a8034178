"""The bytes of bodies that are held: each key's share, the whole, and nothing left behind."""

from __future__ import annotations

import random

import pytest

from backends.errors import BodyTooLarge, KeyHoldsTooMuch, SlipstreamError, TooMuchHeld
from gateway.http.body_budget import UNCOUNTED_BYTES, BodyBudget

_KIB = 1024


def test_key_has_its_share_and_no_more() -> None:
    """Another key's is free still, and its own again once it was given back."""
    budget = BodyBudget(100 * _KIB, 40 * _KIB, 100 * _KIB)
    first = budget.hold("a", "t")
    first.grow(30 * _KIB)
    with pytest.raises(KeyHoldsTooMuch) as refused:
        budget.hold("a", "t").grow(20 * _KIB)
    budget.hold("b", "t").grow(40 * _KIB)
    first.release()
    budget.hold("a", "t").grow(40 * _KIB)

    assert (refused.value.retry_after_s or 0) > 0
    assert budget.num_bytes == 80 * _KIB


def test_tenant_has_its_share_with_all_of_its_keys() -> None:
    """However many they are; another tenant's is free still."""
    budget = BodyBudget(100 * _KIB, 40 * _KIB, 60 * _KIB)
    first = budget.hold("a", "red")
    first.grow(40 * _KIB)
    with pytest.raises(KeyHoldsTooMuch, match="this tenant's"):
        budget.hold("b", "red").grow(30 * _KIB)
    budget.hold("c", "blue").grow(40 * _KIB)
    first.release()
    budget.hold("b", "red").grow(40 * _KIB)

    assert budget.num_bytes == 80 * _KIB


def test_whole_is_bounded_whoever_asks() -> None:
    """The third key finds it spent."""
    budget = BodyBudget(100 * _KIB, 40 * _KIB, 100 * _KIB)
    for key in "ab":
        budget.hold(key, "t").grow(40 * _KIB)

    with pytest.raises(TooMuchHeld):
        budget.hold("c", "t").grow(21 * _KIB)


@pytest.mark.parametrize(("key", "fits"), [("", 100), ("a", 40)])
def test_body_that_never_fits_is_too_large(key: str, fits: int) -> None:
    """Trying again would not help; without keys the whole is the only bound."""
    budget = BodyBudget(100 * _KIB, 40 * _KIB, 100 * _KIB)
    with pytest.raises(BodyTooLarge):
        budget.hold(key, "t").grow(fits * _KIB + 1)
    budget.hold(key, "t").grow(fits * _KIB)

    assert budget.num_bytes == fits * _KIB


def test_small_bodies_are_not_counted() -> None:
    """Most are, and connections bound them."""
    budget = BodyBudget(20 * _KIB, 20 * _KIB, 20 * _KIB)
    for _ in range(100):
        budget.hold("a", "t").grow(UNCOUNTED_BYTES)

    assert budget.num_bytes == 0


def test_nothing_is_left_behind() -> None:
    """Whatever was taken, refused and released, in any order: in the end all of it is free."""
    random_ = random.Random(3)
    budget = BodyBudget(1000 * _KIB, 400 * _KIB, 1000 * _KIB)
    held = [budget.hold(random_.choice("abc"), random_.choice("tu")) for _ in range(50)]
    for _ in range(2000):
        one = random_.choice(held)
        if random_.random() < 0.3:
            one.release()
        else:
            try:
                one.grow(random_.randrange(500 * _KIB))
            except SlipstreamError:
                one.release()
        assert budget.num_bytes == sum(each.num_bytes for each in held) <= 1000 * _KIB
    for one in held:
        one.release()

    assert budget.num_bytes == 0
    budget.hold("a", "t").grow(400 * _KIB)


def test_what_is_only_announced_takes_nothing() -> None:
    """It must fit, by itself and at present; others are not locked out by it."""
    budget = BodyBudget(100 * _KIB, 40 * _KIB, 100 * _KIB)
    for _ in range(10):
        budget.hold("a", "t").announce(40 * _KIB)
    with pytest.raises(BodyTooLarge):
        budget.hold("a", "t").announce(41 * _KIB)
    budget.hold("a", "t").grow(30 * _KIB)
    with pytest.raises(KeyHoldsTooMuch):
        budget.hold("a", "t").announce(20 * _KIB)

    assert budget.num_bytes == 30 * _KIB
