"""WebDataset shards, whole and broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clipmend.data.readers import read
from clipmend.data.readers.webdataset import expand_shards
from data.readers.made import encoded, shard, tar


@pytest.mark.parametrize(("name", "mode"), [("a.tar", "w"), ("a.tar.gz", "w:gz"), ("a.tar.xz", "w:xz"), ("a.tgz", "w:gz")])
def test_samples_of_a_shard(tmp_path: Path, name: str, mode: str) -> None:
    records = list(read(shard(tmp_path / name, mode=mode)))
    assert [r.captions for r in records] == [("picture number 0",), ("picture number 1",), ("picture number 2",)]
    assert records[0].image == f"{name}/00000.jpg"
    assert records[0].open().size == (16, 12)


def test_captions_from_json(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", 1)
    assert next(iter(read(path, caption_column="caption"))).captions == ("number 0",)
    assert next(iter(read(path, caption_column="txt"))).captions == ("picture number 0",)
    with pytest.raises(ValueError, match=r"a\.tar: 00000: \.json has no title; it has caption, url"):
        list(read(path, caption_column="title"))
    plain = tar(tmp_path / "b.tar", {"x.png": encoded(kind="PNG"), "x.json": json.dumps({"text": ["one", "two"]}).encode()})
    assert next(iter(read(plain))).captions == ("one", "two")


def test_patterns(tmp_path: Path) -> None:
    for n in range(11):
        shard(tmp_path / f"{n:03d}.tar", 1, n)
    assert [p.name for p in expand_shards(tmp_path / "{000..010}.tar")] == [f"{n:03d}.tar" for n in range(11)]
    assert [p.name for p in expand_shards(tmp_path / "00{1,3..4}.tar")] == ["001.tar", "003.tar", "004.tar"]
    assert [p.name for p in expand_shards(tmp_path / "{00,01}{0..0}.tar")] == ["000.tar", "010.tar"]
    assert len(expand_shards(tmp_path / "0*.tar")) == len(expand_shards(tmp_path)) == 11
    assert len(list(read(str(tmp_path / "{000..010}.tar")))) == 11
    with pytest.raises(FileNotFoundError, match=r"2 of 4 shards are missing: .*011\.tar, .*012\.tar"):
        expand_shards(tmp_path / "{009..012}.tar")
    with pytest.raises(FileNotFoundError, match="matches no file"):
        expand_shards(tmp_path / "x*.tar")
    with pytest.raises(ValueError, match="runs backwards"):
        expand_shards(tmp_path / "{3..1}.tar")
    with pytest.raises(ValueError, match="neither a range"):
        expand_shards(tmp_path / "{abc}.tar")


@example(0, 12, False)
@given(st.integers(0, 120), st.integers(0, 30), st.booleans())
def test_a_range_means_every_number_in_it(tmp_path_factory: pytest.TempPathFactory, first: int, more: int, padded: bool) -> None:
    folder = tmp_path_factory.mktemp("s")
    width = 4 if padded else 0
    names = [f"{n:0{width}d}.tar" if padded else f"{n}.tar" for n in range(first, first + more + 1)]
    for name in names:
        (folder / name).touch()
    ends = (f"{first:04d}", f"{first + more:04d}") if padded else (str(first), str(first + more))
    assert [p.name for p in expand_shards(f"{folder}/{{{ends[0]}..{ends[1]}}}.tar")] == names


def test_every_cut_of_a_shard_is_noticed_and_good_samples_are_kept(tmp_path: Path) -> None:
    whole = shard(tmp_path / "a.tar", 3).read_bytes()
    path = tmp_path / "cut.tar"
    for end in range(300, len(whole) - 10240 + 1024, 512):  # up to the end-of-archive mark and through its padding
        path.write_bytes(whole[:end])
        source = read(path, on_error="skip")
        kept = [r.captions[0] for r in source]
        assert kept == [f"picture number {n}" for n in range(len(kept))]
        if end < len(whole.rstrip(b"\0")):
            assert source.log.skipped >= 1, f"a shard cut at byte {end} passed for whole"
    path.write_bytes(whole[: int(len(whole.rstrip(b"\0")) * 0.7)])
    with pytest.raises(ValueError, match=r"cut\.tar: broken after 00001\.\w+: .*the rest of the shard is lost"):
        list(read(path))


def test_a_damaged_header_does_not_end_a_shard_silently(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", 3)
    content = bytearray(path.read_bytes())
    place = content.index(b"00001.txt")
    content[place : place + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    other = shard(tmp_path / "b.tar", 2, 7)
    source = read(f"webdataset:{tmp_path}/{{a,b}}.tar", on_error="skip")
    assert [r.captions[0] for r in source] == ["picture number 0", "picture number 7", "picture number 8"]
    assert any("a.tar: broken after 00001.jpg: the next header is damaged" in p for p in source.log.problems)
    assert len(list(read(other))) == 2


SAMPLES: dict[str, tuple[dict[str, bytes], str]] = {
    "no image": ({"1.txt": b"a"}, r"1: the sample has no image; it has \.txt"),
    "two images": ({"1.jpg": encoded(), "1.png": encoded(kind="PNG"), "1.txt": b"a"}, r"has 2 images \(jpg, png\)"),
    "no caption": ({"1.jpg": encoded()}, r"1: no caption: the sample has \.jpg"),
    "an empty image": ({"1.jpg": b"", "1.txt": b"a"}, r"1\.jpg: is empty"),
    "a blank caption": ({"1.jpg": encoded(), "1.txt": b" \n"}, r"1: \.txt is empty"),
    "Latin-1": ({"1.jpg": encoded(), "1.txt": b"caf\xe9"}, r"1: \.txt is not UTF-8 text"),
    "bad JSON": ({"1.jpg": encoded(), "1.json": b'{"caption": '}, r"1: \.json is not JSON"),
    "a list": ({"1.jpg": encoded(), "1.json": b"[]"}, r"1: \.json holds no object"),
    "NaN": ({"1.jpg": encoded(), "1.json": b'{"caption": NaN}'}, r"caption is missing \(nan\)"),
    "too large": ({"1.jpg": encoded(), "1.txt": b"a" * 5000}, r"1\.txt: is 5,000 bytes, over the limit of 4,000"),
}


@pytest.mark.parametrize("case", SAMPLES)
def test_bad_samples_are_named_or_skipped(tmp_path: Path, case: str) -> None:
    members, message = SAMPLES[case]
    good = {"2.jpg": encoded(), "2.txt": b"fine", "__MACOSX/._2.jpg": b"x", "README": b"no dot"}
    path = tar(tmp_path / "a.tar", {**members, **good})
    with pytest.raises(ValueError, match=message) as error:
        list(read(path, max_member=4000))
    assert "a.tar" in str(error.value)
    source = read(path, max_member=4000, on_error="skip")
    assert [r.captions for r in source] == [("fine",)]
    assert source.log.skipped == 1


def test_not_a_tar(tmp_path: Path) -> None:
    for name, content in (("a.tar", b"not a tar at all" * 100), ("b.tar", b""), ("c.tar.gz", b"\x1f\x8b" + b"\0" * 20)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name}: broken after its start"):
            list(read(tmp_path / name))
    with pytest.raises(ValueError, match="holds no samples"):
        list(read(tar(tmp_path / "d.tar", {})))


def test_two_folders_of_one_name_are_two_samples(tmp_path: Path) -> None:
    path = tar(
        tmp_path / "a.tar",
        {"x/1.jpg": encoded(), "x/1.txt": b"first", "y/1.jpg": encoded(), "y/1.txt": b"second"},
    )
    assert [(r.image, r.captions[0]) for r in read(path)] == [("a.tar/x/1.jpg", "first"), ("a.tar/y/1.jpg", "second")]
