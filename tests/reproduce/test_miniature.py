"""The miniature is read by the readers of the real data sets, and says what was drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clipmend.data.preflight import preflight
from clipmend.data.readers import read
from clipmend.data.scenes import make_scenes
from clipmend.evaluation import read_choice, read_retrieval
from clipmend.reproduce.miniature import COCO_NAMES, Miniature, write_miniature
from clipmend.reproduce.published import TABLES


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Miniature:
    return write_miniature(tmp_path_factory.mktemp("mini") / "m", 10, 6, size=16)


def test_every_reader_takes_it_without_complaint(mini: Miniature) -> None:
    for source in (read(mini.coco, split="train2017"), read(mini.coco, split="val2017"), read(mini.voc, split="test")):
        report = preflight(source)
        assert report.ok, {name: f.examples for name, f in report.findings.items() if f.count}
    tables = read(mini.negbench)
    assert len({record.where.partition(":")[0] for record in tables}) == len(TABLES)


def test_annotations_are_what_was_drawn(mini: Miniature) -> None:
    scenes = [s for s in make_scenes(30, 7, "train") if any(k in COCO_NAMES for k in s.kinds)]
    for scene, record in zip(scenes, read(mini.coco, split="train2017"), strict=False):
        assert record.present == {COCO_NAMES[k] for k in scene.kinds if k in COCO_NAMES}
        assert len(record.captions) == 5


def test_questions_are_true_of_their_images(mini: Miniature) -> None:
    """Against the annotations: every right option holds, every wrong one does not."""
    there = {Path(r.image).name: r.present for r in read(mini.coco, split="val2017")}
    items = read_choice(mini.negbench / "images" / f"{TABLES['coco_choice'].name}.csv")
    assert {item.template for item in items} == {"affirmative", "negative", "hybrid"}
    for item in items:
        assert item.answer == 0
        present = there[Path(item.image).name]
        for place, caption in enumerate(item.captions):
            assert _holds(caption, present) == (place == 0), (caption, present)


def _holds(caption: str, present: frozenset[str] | None) -> bool:
    assert present is not None
    names = sorted(COCO_NAMES.values())

    def things(text: str) -> set[str]:
        return {name for name in names if f" {name} " in f" {text.replace(',', ' ').replace('.', ' ')} "}

    if "does not feature" in caption:
        return not things(caption) & present
    asserted, _, denied = caption.partition(", but not ")
    return things(asserted) <= present and not things(denied) & present


def test_negated_captions_deny_what_is_absent(mini: Miniature) -> None:
    folder = mini.negbench / "images"
    plain, negated = (read_retrieval(folder / f"{TABLES[name].name}.csv") for name in ("coco_retrieval", "coco_negated"))
    assert plain.images == negated.images
    assert len(plain.captions) == len(negated.captions)
    assert all("There is no " in caption for caption in negated.captions)
    rows = read(folder / f"{TABLES['coco_negated'].name}.csv")
    for record in rows:
        denied = {c.partition("There is no ")[2].partition(" in the image")[0] for c in record.captions}
        assert denied <= (record.absent or frozenset())


def test_the_captions_are_those_of_the_annotations(mini: Miniature) -> None:
    content = json.loads((mini.coco / "annotations" / "captions_val2017.json").read_text(encoding="utf-8"))
    annotated = {entry["caption"] for entry in content["annotations"]}
    plain = read_retrieval(mini.negbench / "images" / f"{TABLES['coco_retrieval'].name}.csv")
    assert set(plain.captions) <= annotated


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 8 training"):
        write_miniature(tmp_path / "m", 3, 6)
    with pytest.raises(ValueError, match="16 to 4096"):
        write_miniature(tmp_path / "m", 10, 6, size=8)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError):
        write_miniature(tmp_path / "mine", 10, 6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine"]
