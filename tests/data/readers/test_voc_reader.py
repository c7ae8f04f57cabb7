"""Pascal VOC's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from clipmend.data.readers import read
from clipmend.data.readers.voc import VOC_CLASSES
from data.readers.made import voc, voc_xml, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return voc(tmp_path)


def test_present_and_absent(root: Path) -> None:
    source = read(root, split="test")
    first, second = source
    assert first.image == "000001.jpg"
    assert first.present == {"dog", "person"}
    assert "chair" not in (first.absent or ()), "all chairs are difficult: unknown"
    assert len(first.absent or ()) == 17
    assert second.present == {"train", "dog"}, "one dog is difficult, another is not"
    assert len(second.absent or ()) == 18
    assert source.vocabulary == set(VOC_CLASSES)
    assert len(VOC_CLASSES) == 20
    assert first.open(source.image_root).size == (16, 12)
    assert source.log.notes == ["VOC2007: 1 of 2 images have a class with difficult objects only, taken as unknown"]


@pytest.mark.parametrize(("difficult", "present", "absent"), [("present", True, False), ("absent", False, True)])
def test_difficult_objects_can_count_either_way(root: Path, difficult: str, present: bool, absent: bool) -> None:
    first = next(iter(read(root, split="test", difficult=difficult)))
    assert ("chair" in (first.present or ()), "chair" in (first.absent or ())) == (present, absent)
    assert len(first.present or ()) + len(first.absent or ()) == 20


def test_every_way_to_name_the_folder_and_the_split(root: Path) -> None:
    inner = root / "VOCdevkit" / "VOC2007"
    for path in (root, root / "VOCdevkit", inner):
        assert [r.image for r in read(path)] == ["000001.jpg", "000002.jpg", "000003.jpg"]
    assert [r.image for r in read(inner, split="dog_test")] == ["000001.jpg", "000002.jpg"]
    assert next(iter(read(inner, split="trainval"))).present == set()
    with pytest.raises(FileNotFoundError, match=r"no such split; there are test, trainval"):
        read(inner, split="val")
    with pytest.raises(FileNotFoundError, match="has no folder Annotations"):
        read(f"voc:{inner / 'JPEGImages'}")
    with pytest.raises(ValueError, match="difficult is 'maybe'"):
        read(root, difficult="maybe")


def test_other_classes(root: Path) -> None:
    inner = root / "VOCdevkit" / "VOC2007"
    write(inner / "Annotations" / "000003.xml", voc_xml("000003", [("zebra", "0")]))
    with pytest.raises(ValueError, match=r"000003\.xml: object 1 is a 'zebra', which is not among the classes"):
        list(read(root, split="trainval"))
    (record,) = read(root, split="trainval", classes=("zebra", "dog"))
    assert (record.present, record.absent) == ({"zebra"}, {"dog"})


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        (voc_xml("000003", [("dog", "0")])[:-30], "broken XML"),
        ("", "broken XML"),
        ("<html></html>", "the root element is <html>"),
        (voc_xml("000003", [("", "0")]), "object 1 has no name"),
        (voc_xml("000003", [("dog", "yes")]), r"object 1 \(dog\): difficult is 'yes'"),
        ('<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "bb">]><annotation>&b;</annotation>', "document type"),
        ('<?xml version="1.0" encoding="klingon"?><annotation/>', "broken XML"),
    ],
)
def test_broken_xml_is_named_or_skipped(root: Path, xml: str, message: str) -> None:
    write(root / "VOCdevkit" / "VOC2007" / "Annotations" / "000003.xml", xml)
    with pytest.raises(ValueError, match=rf"000003\.xml: .*{message}"):
        list(read(root))
    source = read(root, on_error="skip")
    assert len(list(source)) == 2
    assert source.log.skipped == 1


def test_broken_lists(root: Path) -> None:
    main = root / "VOCdevkit" / "VOC2007" / "ImageSets" / "Main"
    write(main / "test.txt", "000001\n000009\n")
    with pytest.raises(FileNotFoundError, match=r"test\.txt: line 2: .*000009\.xml is not there"):
        list(read(root, split="test"))
    for text, message in (
        ("000001\n000001\n", "line 2: image 000001 is listed twice"),
        ("../../etc/passwd\n", "line 1: '../../etc/passwd' is no image id"),
        ("\n", "lists no image"),
    ):
        write(main / "test.txt", text)
        with pytest.raises(ValueError, match=message):
            list(read(root, split="test"))
