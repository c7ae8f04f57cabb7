"""Copies between stores: nothing is lost, ids stay, a copy that was cut short goes on, and damage is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clipmend.search.arrays import ArrayGallery
from clipmend.search.copying import copy_gallery
from clipmend.search.gallery import Condition, Gallery, GalleryError, Item, WritableGallery
from clipmend.search.opening import create_gallery, open_gallery
from search.test_galleries import ABOUT, CONDITIONS, DIM, FIELDS, ITEMS, STORES, VECTORS, WRITABLE, empty, filled, spec_of


def snapshot(gallery: Gallery) -> list[tuple[int, str, dict[str, Any], str, list[float]]]:
    ids = np.concatenate([*gallery.ids(), np.empty(0, np.int64)]).astype(np.int64)
    vectors = np.round(gallery.vectors(ids), 4).tolist()
    items = gallery.items(ids)
    return [(item.id, item.path, dict(item.fields), item.sha256, v) for item, v in zip(items, vectors, strict=True)]


@pytest.fixture
def source() -> ArrayGallery:
    return ArrayGallery(VECTORS, ITEMS, fields=FIELDS, backbone="fake", image_digest="image-side")


@pytest.fixture(params=WRITABLE)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with empty(request.param, tmp_path) as made:
        yield made


@pytest.mark.parametrize("to", WRITABLE)
@pytest.mark.parametrize("come_from", STORES)
def test_every_store_into_every_other(come_from: str, to: str, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    with filled(come_from, tmp_path / "from") as source:
        with create_gallery(spec_of(to, tmp_path / "to"), fields=source.fields, **ABOUT) as target:  # type: ignore[arg-type]
            report = copy_gallery(source, target, batch=40)
            assert (report.total, report.copied, report.there, report.others, report.compared) == (90, 90, 0, 0, 90)
        with open_gallery(spec_of(to, tmp_path / "to")) as again:
            assert snapshot(again) == snapshot(source)
            for where in CONDITIONS:
                assert again.count([where]) == source.count([where])


def test_the_second_copy_does_nothing(source: ArrayGallery, target: WritableGallery, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_gallery(source, target)
    monkeypatch.setattr(target, "add", None)
    report = copy_gallery(source, target, batch=7, sample=10)
    assert (report.copied, report.there, report.compared) == (0, 90, 10)
    assert str(report).startswith("0 of 90 images copied, 90 were there already; 10 vectors compared;")


def test_a_copy_that_was_cut_short_goes_on(source: ArrayGallery, target: WritableGallery, monkeypatch: pytest.MonkeyPatch) -> None:
    add, calls = target.add, []

    def dying(items: Sequence[Item], vectors: np.ndarray) -> None:
        calls.append(len(items))
        if len(calls) == 4:
            raise KeyboardInterrupt
        add(items, vectors)

    monkeypatch.setattr(target, "add", dying)
    with pytest.raises(KeyboardInterrupt):
        copy_gallery(source, target, batch=10)
    assert len(target) == 30
    report = copy_gallery(source, target, batch=10)
    assert (report.copied, report.there) == (60, 30)
    assert snapshot(target) == snapshot(source)


def test_what_changed_is_replaced_and_what_is_new_added(target: WritableGallery) -> None:
    half = ArrayGallery(VECTORS[:50], ITEMS[:50], fields=FIELDS)
    copy_gallery(half, target)
    items, vectors = list(ITEMS), VECTORS.copy()
    assert items[5].sha256 == ""
    vectors[5] = -vectors[5]  # of no digest: only the vector tells
    items[7] = Item(items[7].id, items[7].path, {**items[7].fields, "label": "other"}, items[7].sha256)
    items[8] = Item(items[8].id, "moved.jpg", items[8].fields, items[8].sha256)
    items[9] = Item(items[9].id, items[9].path, items[9].fields, "e" * 64)
    whole = ArrayGallery(vectors, items, fields=FIELDS)
    report = copy_gallery(whole, target, batch=16)
    assert (report.copied, report.there, report.others) == (44, 46, 0)
    assert snapshot(target) == snapshot(whole)


def test_images_of_others_stay(source: ArrayGallery, target: WritableGallery) -> None:
    strangers = [Item(id_, f"other/{id_}.jpg") for id_ in (1, 100, 2**62 - 1, 2**63 - 2)]
    target.add(strangers, VECTORS[:4])
    report = copy_gallery(source, target, batch=8)
    assert (report.copied, report.others) == (90, 4)
    assert "4 of the target are of another source, and stay" in str(report)
    assert len(target) == 94


def test_an_empty_source(target: WritableGallery) -> None:
    report = copy_gallery(ArrayGallery(np.empty((0, DIM), np.float32)), target)
    assert (report.total, report.copied, report.compared) == (0, 0, 0)


def test_another_encoder_is_refused(source: ArrayGallery, tmp_path: Path) -> None:
    pytest.importorskip("qdrant_client")
    about = {**ABOUT, "image_digest": "another"}
    with (
        create_gallery(f"qdrant:{tmp_path}/c", **about) as target,  # type: ignore[arg-type]
        pytest.raises(GalleryError, match="cannot be compared"),
    ):
        copy_gallery(source, target)
    with (
        create_gallery(f"qdrant:{tmp_path}/d", embed_dim=DIM + 1) as target,
        pytest.raises(GalleryError, match=r"8 dimensions, .* of 9"),
    ):
        copy_gallery(source, target)
    with (
        create_gallery(f"qdrant:{tmp_path}/e", embed_dim=DIM, backbone="scenes") as target,
        pytest.raises(GalleryError, match=r"made by 'fake', .* by 'scenes'"),
    ):
        copy_gallery(source, target)


def test_what_does_not_arrive_is_told(source: ArrayGallery, target: WritableGallery, monkeypatch: pytest.MonkeyPatch) -> None:
    add = target.add
    monkeypatch.setattr(target, "add", lambda items, vectors: add(items[1:], vectors[1:]))
    with pytest.raises(GalleryError, match="1 of 90 images"):
        copy_gallery(source, target)
    monkeypatch.setattr(target, "add", lambda items, vectors: add(items, vectors[::-1]))
    target.remove(np.concatenate(list(target.ids())))
    with pytest.raises(GalleryError, match="is not what was copied"):
        copy_gallery(source, target)


def test_wrong_arguments(source: ArrayGallery, target: WritableGallery) -> None:
    with pytest.raises(ValueError, match="batch"):
        copy_gallery(source, target, batch=0)
    with pytest.raises(ValueError, match="same gallery"):
        copy_gallery(target, target)


def test_fields_that_the_target_lacks_are_left_out(source: ArrayGallery, tmp_path: Path) -> None:
    pytest.importorskip("qdrant_client")
    with create_gallery(f"qdrant:{tmp_path}/c", fields={"label": "text"}, **ABOUT) as target:  # type: ignore[arg-type]
        copy_gallery(source, target)
        assert copy_gallery(source, target).copied == 0
        assert target.count([Condition("label", "=", "cat")]) == 18
        with pytest.raises(GalleryError, match="no field 'width'"):
            target.count([Condition("width", "=", 1.0)])


def test_another_image_of_the_same_id_is_not_replaced_unasked(source: ArrayGallery, target: WritableGallery) -> None:
    copy_gallery(source, target)
    before = snapshot(target)
    second = ArrayGallery(-VECTORS[:10], [Item(item.id, f"second/{item.id}.jpg") for item in ITEMS[:10]])
    with pytest.raises(GalleryError, match=r"another image of the id 0 .*--id-offset.*--replace"):
        copy_gallery(second, target)
    assert snapshot(target) == before
    report = copy_gallery(second, target, id_offset=1000)
    assert (report.copied, report.there, report.others) == (10, 0, 90)
    assert copy_gallery(second, target, id_offset=1000).there == 10
    assert target.items([1027])[0].path == "second/27.jpg"
    np.testing.assert_allclose(target.vectors([1027]), -VECTORS[9:10], atol=1e-6)
    assert copy_gallery(second, target, replace=True).copied == 10
    assert target.items([27])[0].path == "second/27.jpg"
    for offset in (-1, 2**63 - 5):
        with pytest.raises(ValueError, match="with"):
            copy_gallery(second, target, id_offset=offset)
