"""Built-in minimal pairs, and pairs read from the tables people really have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clipmend.negation.pairs import KINDS, NOUNS, Pair, minimal_pairs, pair_list, read_pairs, with_article


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_crosses_frames_with_nouns(kind: str) -> None:
    pairs = minimal_pairs(kind)
    frames = {pair.frame for pair in pairs}
    assert len(frames) >= 5
    assert len(NOUNS) >= 25
    assert len(pairs) == len(set(pairs)) == len(frames) * len(NOUNS)
    assert all(pair.positive != pair.contrast and pair.kind == kind for pair in pairs)
    for frame in frames:  # within a frame only the objects change, so each positive text is there once
        texts = [pair.positive for pair in pairs if pair.frame == frame]
        assert len(set(texts)) == len(texts)
    assert not any(re.search(r"[{}]|\ban? [aeiou]\w+ing\b", text) for pair in pairs for text in (pair.positive, pair.contrast))


def test_negation_pairs_negate_the_contrast_alone() -> None:
    negated = re.compile(r"\b(no|not|without|cannot)\b")
    pairs = minimal_pairs()
    assert all(negated.search(pair.contrast) and not negated.search(pair.positive) for pair in pairs)
    assert len({pair.words for pair in pairs}) >= 4
    by_wording = {pair.wording: pair for pair in pairs}
    for wording, pair in by_wording.items():
        assert wording in pair.contrast


def test_two_object_kinds_never_use_one_object_twice() -> None:
    for kind in ("relation", "order", "attribute"):
        for pair in minimal_pairs(kind, ["cat", "dog", "umbrella"]):
            first, _, second = pair.object.partition(", ")
            assert first != second
    order = minimal_pairs("order", ["cat", "dog"])
    assert order[0].positive == "a cat to the left of a dog"
    assert order[0].contrast == "a dog to the left of a cat"


def test_words_around_the_noun() -> None:
    assert with_article("umbrella") == "an umbrella"
    texts = {pair.positive for pair in minimal_pairs("count", ["bus", "cherry", "toy", "sheep"])}
    assert {"a photo of two buses", "a photo of two cherries", "a photo of two toys", "a photo of two sheep"} <= texts


@pytest.mark.parametrize("nouns", [[], ["cat"], ["cat", "cat"], ["cat", " "]])
def test_too_few_nouns(nouns: list[str]) -> None:
    with pytest.raises(ValueError, match="two different nouns"):
        minimal_pairs("negation", nouns)


def test_wordings_are_read_off_the_texts_where_none_is_given() -> None:
    assert Pair("There is a cat here", "there is no cat here.").words == "no"
    assert Pair("a photo of a dog", "a photo of no dog", frame="x").words == "no"
    assert Pair("this shows a cat", "this does not show a cat").words == "does not show"
    assert Pair("a red cup and a blue plate", "a blue cup and a red plate", frame="swap").words == "swap"
    assert Pair("a cat", "no cat", wording="mine").words == "mine"


def test_unknown_kind() -> None:
    with pytest.raises(ValueError, match=r"'colour'.*negation, attribute"):
        minimal_pairs("colour")


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_scene_table_with_every_column(tmp_path: Path) -> None:
    table = read_pairs(
        write(
            tmp_path / "pairs.csv",
            "kind,positive,contrast,image,group,extra\n"
            'attribute,"a red cup, a plate","a blue cup, a plate",0.png,g1,x\n'
            "count,two cats,three cats,1.png,g2,\n",
        )
    )
    assert list(table) == [
        Pair("a red cup, a plate", "a blue cup, a plate", "attribute", "", "g1", "0.png"),
        Pair("two cats", "three cats", "count", "", "g2", "1.png"),
    ]
    assert table.notes == ()


@pytest.mark.parametrize(
    "data",
    [
        b"positive,contrast\na cat,no cat\na dog,no dog\n",
        b"\xef\xbb\xbfpositive,contrast\r\na cat,no cat\r\n\r\na dog,no dog\r\n",
        b"\xef\xbb\xbfpositive;contrast\r\na cat;no cat\r\na dog;no dog",
        b"Caption\tNegated\na cat\tno cat\na dog\tno dog\n",
        "positive,contrast\na cat,no cat\na dog,no dog\n".encode("utf-16"),
        b"positive,contrast\ra cat,no cat\ra dog,no dog\r",
        b'"positive" , "contrast"\n a cat , no cat \na dog,no dog\n'.replace(b'" ,', b'",').replace(b', "', b',"'),
    ],
    ids=["plain", "bom-crlf-blank", "semicolons", "tabs-synonyms", "utf-16", "old-mac", "spaces"],
)
def test_ways_of_writing_a_table(tmp_path: Path, data: bytes) -> None:
    assert list(read_pairs(write(tmp_path / "two wörds.csv", data))) == [Pair("a cat", "no cat"), Pair("a dog", "no dog")]


@pytest.mark.parametrize("data", ["a cat\tno cat\na dog\tno dog\n", "left\tright\na cat\tno cat\n", "a\tb\n1\t2\n"])
def test_two_columns_are_no_pairs_unless_they_say_so(tmp_path: Path, data: str) -> None:
    path = write(tmp_path / "two.tsv", data)
    first = ", ".join(data.splitlines()[0].split("\t"))
    with pytest.raises(ValueError, match=rf"two\.tsv: no column positive and no column contrast .*has {first}\).*--columns"):
        read_pairs(path)


def test_columns_of_other_names_are_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "named.csv", "id,left,right\n1,a cat,no cat\n")
    assert list(read_pairs(path, columns=("left", "right"))) == [Pair("a cat", "no cat")]
    with pytest.raises(ValueError, match=r"no column 'Left' \(the columns are id, left, right\)"):
        read_pairs(path, columns=("Left", "right"))
    with pytest.raises(ValueError, match="'left' cannot hold both texts"):
        read_pairs(path, columns=("left", "left"))


def test_duplicates_are_dropped_and_counted(tmp_path: Path) -> None:
    table = read_pairs(write(tmp_path / "p.csv", "positive,contrast\na cat,no cat\na cat,no cat \na cat,without cat\n"))
    assert (len(table), table.duplicates) == (2, 1)
    assert "1 repeated row dropped" in table.notes[0]
    assert pair_list(table)[1] == list(table.notes)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        ("positive,contrast\n", "a header and no rows"),
        ("positive,image\na,b\n", "no column contrast.*positive, image"),
        ("id,text,other\n1,a,b\n", "no column positive and no column contrast"),
        ("positive,contrast\na cat,no cat\na dog,\n", "row 3: the cell contrast is empty"),
        ("positive,contrast\n  ,no cat\n", "row 2: the cell positive is empty"),
        ("kind,positive,contrast\n,a,b\n", "row 2: the cell kind is empty"),
        ("positive,contrast\na cat, black,no cat\n", "row 2: 3 cells where the first line has 2.*double quotes"),
        ("positive,contrast\na cat\n", "row 2: 1 cells"),
        ('positive,contrast\n"a cat,no cat\n', "row .*check its quotes"),
        (b"positive,contrast\na caf\xe9,no\n", "row 2: not UTF-8 text"),
        (b"positive,contrast\na\0b,no\n", "row 2: a zero byte"),
    ],
)
def test_broken_tables_name_file_and_row(tmp_path: Path, data: str | bytes, message: str) -> None:
    path = write(tmp_path / "broken.csv", data)
    with pytest.raises(ValueError, match=rf"broken\.csv.*{message}"):
        read_pairs(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_pairs(tmp_path / "none.csv")


def test_pairs_given_in_code() -> None:
    pairs, notes = pair_list([("a cat", "no cat"), Pair("a", "b", "mine")])
    assert pairs == [Pair("a cat", "no cat"), Pair("a", "b", "mine")]
    assert notes == []
    with pytest.raises(ValueError, match="pair 0"):
        pair_list(["ab"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="no pairs"):
        pair_list([])
    with pytest.raises(ValueError, match=r"contrast text of a pair is empty.*'a cat'"):
        Pair("a cat", " ")
