"""Globs over model names, against plain fnmatch."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policies.matching.globs import GlobMap, ModelSet, allows, is_glob
from tests.support.policy.least_time import least_s

names = st.text(alphabet="ab/]é", max_size=6)
globs = st.text(alphabet="ab/é*?[]!-", min_size=1, max_size=6).filter(is_glob)


@given(st.lists(globs, max_size=12, unique=True), names)
@example(["ab*ba"], "aba")
@example(["a*b", "a*c", "a*d", "a*e", "a*", "a?"], "ab")
@example(["[ab"], "[ab")
@example(["a[!]]b"], "aéb")
def test_glob_map_finds_what_fnmatch_finds(texts: list[str], name: str) -> None:
    """The values of the globs that cover a name, each once, wherever their wildcards stand."""
    found = sorted(GlobMap({glob: glob for glob in texts}).of(name))

    assert found == sorted(glob for glob in texts if fnmatchcase(name, glob))


@given(st.lists(globs | names.filter(bool), max_size=6), names)
def test_model_set_covers_what_allows_says(texts: list[str], model: str) -> None:
    """The indexed set and the plain reading are the same."""
    assert ModelSet(texts).covers(model) is allows(texts, model)


@pytest.mark.timed
def test_model_set_of_many_globs_costs_as_one() -> None:
    """A key with 2,000 globs asks as fast as one with a single glob."""
    many = ModelSet([f"team-{number}/*" for number in range(2000)])
    one = ModelSet(["team-1999/*"])

    assert many.covers("team-1999/x")
    assert not many.covers("team-2000/x")
    assert least_s(lambda: many.covers("team-1999/x")) < 12 * least_s(lambda: one.covers("team-1999/x"))


def test_glob_map_counts_what_no_look_up_tells_apart() -> None:
    """Globs with a wildcard at both ends are tried one by one, and counted."""
    assert GlobMap({f"*{number}*": number for number in range(9)}).most_tried() == 9
    assert GlobMap({f"*{number}": number for number in range(9)}).most_tried() == 1
