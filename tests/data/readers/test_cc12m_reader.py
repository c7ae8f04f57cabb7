"""CC12M-NegCap and CC12M-NegMCQ, in the columns of the scripts that make them."""

from __future__ import annotations

from pathlib import Path

import pytest

from clipmend.data.readers import read
from data.readers.made import MCQ_HEADER, MCQ_ROWS, write

HEADER = "filepath,caption,positive_objects,negative_objects,negative_captions\n"
ROWS = (
    'cc12m/1.jpg,A cat on a mat,"[\'cat\', \'mat\']","[\'dog\']","[\'A cat on a mat, no dog.\', ""There\'s no dog, a cat.""]"\n'
    "cc12m/2.jpg,A street,\"['street']\",\"['car', 'bus']\",[]\n"
    "cc12m/3.jpg,A lake,\"['lake']\",\"['boat']\",\n"
)


def test_negated_captions_stand_apart(tmp_path: Path) -> None:
    source = read(write(tmp_path / "cc12m_llama3.1_neg_captions_0_3.csv", HEADER + ROWS), image_root=tmp_path)
    records = list(source)
    assert records[0].captions == ("A cat on a mat",)
    assert records[0].negated == ("A cat on a mat, no dog.", "There's no dog, a cat.")
    assert (records[0].present, records[0].absent) == ({"cat", "mat"}, {"dog"})
    assert records[1].negated == records[2].negated == ()
    assert source.log.notes == ["cc12m_llama3.1_neg_captions_0_3.csv: 2 rows have no negated caption"]


def test_shards_in_order_and_tabs(tmp_path: Path) -> None:
    write(tmp_path / "x_neg_captions_3_4.csv", HEADER + ROWS.splitlines(keepends=True)[1])
    write(tmp_path / "x_neg_captions_0_3.csv", HEADER + ROWS)
    assert [r.image for r in read(tmp_path)] == ["cc12m/1.jpg", "cc12m/2.jpg", "cc12m/3.jpg", "cc12m/2.jpg"]
    flat = write(tmp_path / "flat" / "pairs.tsv", "img\tsaid\na.jpg\tNo cat, just a dog\n")
    (record,) = read(f"cc12m-negcap:{flat}", image_column="img", caption_column="said", negated_column=None)
    assert (record.image, record.captions, record.present) == ("a.jpg", ("No cat, just a dog",), None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER.replace("negative_captions", "other") + ROWS, "column negative_captions is missing"),
        (HEADER.replace(",", ";") + ROWS, "fields seem to be separated by"),
        (HEADER + ROWS.replace("A street", " "), "line 3: caption is empty"),
        (HEADER + ROWS.replace("[]", "nan"), "line 3: negative_captions is no list of texts: 'nan'"),
        (HEADER + ROWS.replace("['street']", "street"), "line 3: positive_objects is no list of texts"),
        (HEADER + ROWS + "one,two\n", "line 5: 2 fields where the header names 5"),
    ],
)
def test_broken_rows(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(read(f"cc12m-negcap:{write(tmp_path / 'a_neg_captions.csv', text)}"))


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a_neg_captions.csv"
    path.write_bytes((HEADER + ROWS).encode() + "cc12m/4.jpg,caf\u00e9,[],[],[]\n".encode("latin-1"))
    with pytest.raises(ValueError, match="line 5: not UTF-8 text"):
        list(read(f"cc12m-negcap:{path}"))
    source = read(f"cc12m-negcap:{path}", on_error="skip")
    assert len(list(source)) == 3
    assert source.log.skipped == 1


def test_questions_in_shards(tmp_path: Path) -> None:
    for n in range(2):
        write(tmp_path / f"mcq_{n}.csv", MCQ_HEADER + MCQ_ROWS)
    records = list(read(f"cc12m-negmcq:{tmp_path}"))
    assert len(records) == 6
    assert {(r.answer, len(r.captions)) for r in records} == {(0, 4)}
    with pytest.raises(FileNotFoundError, match="no such file"):
        read(f"cc12m-negmcq:{tmp_path / 'none.csv'}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MCQ_HEADER.replace("correct_answer,", "answer,") + MCQ_ROWS, "column correct_answer or label is missing"),
        (MCQ_HEADER + MCQ_ROWS.replace("0,No dog", "4,No dog"), r"mcq_1\.csv: line 3: correct_answer is 4"),
        (MCQ_HEADER + MCQ_ROWS.replace("No dog is there", " "), r"mcq_1\.csv: line 3: caption_0 is empty"),
        (MCQ_HEADER + MCQ_ROWS + "0,a,b\n", r"mcq_1\.csv: line 5: 3 fields where the header names 7"),
        ("", r"mcq_1\.csv: the file is empty"),
    ],
)
def test_broken_shards_of_questions(tmp_path: Path, text: str, message: str) -> None:
    """The second of two shards is broken: file and line are those of the shard."""
    write(tmp_path / "mcq_0.csv", MCQ_HEADER + MCQ_ROWS)
    write(tmp_path / "mcq_1.csv", text)
    with pytest.raises(ValueError, match=message):
        list(read(f"cc12m-negmcq:{tmp_path}"))
