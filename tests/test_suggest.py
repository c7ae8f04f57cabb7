"""A word for who mistyped a name."""

from __future__ import annotations

import pytest

from clipmend.dense import make_recipe
from clipmend.evaluation.caption_changes import CHANGES
from clipmend.suggest import did_you_mean


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("hnclip", " (did you mean 'hn-clip'?)"),
        ("GOAL", " (did you mean 'goal'?)"),
        ("long_clip", " (did you mean 'long-clip'?)"),
        ("zzz", ""),
    ],
)
def test_the_nearest_name_or_nothing(typed: str, meant: str) -> None:
    assert did_you_mean(typed, ["hn-clip", "goal", "long-clip", "plain"]) == meant


def test_recipes_and_their_fields_are_suggested() -> None:
    with pytest.raises(ValueError, match=r"no recipe 'hnclip' \(did you mean 'hn-clip'\?\); choose one of"):
        make_recipe("hnclip")
    with pytest.raises(ValueError, match=r"has no gama \(did you mean 'gamma'\?\); it has"):
        make_recipe("plain", gama=0.5)


def test_every_name_suggests_itself() -> None:
    for name in CHANGES:
        assert did_you_mean(name, CHANGES) == f" (did you mean {name!r}?)"
