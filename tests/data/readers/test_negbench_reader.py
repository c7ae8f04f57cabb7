"""NegBench's tables, in the columns that its code writes and reads."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipmend.data.readers import read
from clipmend.data.readers.negbench import TABLES, find_tables, identify, read_negbench
from clipmend.evaluation import read_choice, read_retrieval
from data.readers.made import MCQ_HEADER, MCQ_ROWS, RETRIEVAL_HEADER, RETRIEVAL_ROWS, picture, write

COCO_MCQ = "COCO_val_mcq_llama3.1_rephrased.csv"
COCO_NEGATED = "COCO_val_negated_retrieval_llama3.1_rephrased_affneg_true.csv"


def test_a_question_has_options_answer_template_and_forms(tmp_path: Path) -> None:
    path = write(tmp_path / COCO_MCQ, MCQ_HEADER + MCQ_ROWS)
    picture(tmp_path / "val" / "000000000001.jpg")
    source = read(path, image_root=tmp_path / "val")
    records = list(source)
    assert [r.template for r in records] == ["hybrid", "negative", "affirmative"]
    assert records[0].captions[0] == "A cat, but no dog"
    assert records[0].forms == ("hybrid", "hybrid", "affirmative", "negative")
    assert {r.answer for r in records} == {0}
    assert records[2].where.endswith("line 4")
    # The table names a folder of another machine; the file is found by its last part.
    assert records[0].path(source.image_root) == tmp_path / "val" / "000000000001.jpg"
    assert records[0].open(source.image_root).size == (16, 12)
    assert source.log.notes == [f"{COCO_MCQ}: the right option is caption_0 in all 3 questions: its place must not count"]


def test_it_agrees_with_what_the_evaluation_reads(tmp_path: Path) -> None:
    choice = write(tmp_path / COCO_MCQ, MCQ_HEADER + MCQ_ROWS)
    retrieval = write(tmp_path / COCO_NEGATED, RETRIEVAL_HEADER + RETRIEVAL_ROWS)
    for record, item in zip(read(choice), read_choice(choice), strict=True):
        assert (record.image, record.captions, record.answer, record.template) == (
            item.image,
            item.captions,
            item.answer,
            item.template,
        )
        assert record.forms == item.forms
    texts = [text for record in read(retrieval) for text in record.captions]
    assert texts == read_retrieval(retrieval).captions


def test_retrieval_rows_carry_their_class_lists(tmp_path: Path) -> None:
    first, second = read(write(tmp_path / COCO_NEGATED, RETRIEVAL_HEADER + RETRIEVAL_ROWS))
    assert first.captions == ("A cat.", "The cat's cup, no dog.")
    assert (first.present, first.absent) == ({"cat", "cup"}, {"dog"})
    assert (second.present, second.absent) == ({"dining table"}, set())
    assert first.answer is None


def test_byte_order_mark_and_carriage_returns(tmp_path: Path) -> None:
    plain = list(read(write(tmp_path / "a" / COCO_MCQ, MCQ_HEADER + MCQ_ROWS)))
    windows = write(tmp_path / "b" / COCO_MCQ, (MCQ_HEADER + MCQ_ROWS).replace("\n", "\r\n"), "utf-8-sig")
    assert [(r.image, r.captions, r.answer) for r in read(windows)] == [(r.image, r.captions, r.answer) for r in plain]


@pytest.mark.parametrize("column", ["correct_answer", "label"])
def test_binary_questions(tmp_path: Path, column: str) -> None:
    path = write(
        tmp_path / "chexpert_binary_mcq.csv",
        f"image_path,caption_0,caption_1,{column}\nvalid/p1.jpg,Shows an effusion,Shows no effusion,1\nvalid/p2.jpg,a,b,0.0\n",
    )
    assert identify(path).task == "binary_choice"
    first, second = read(path)
    assert (first.answer, first.template, first.forms) == (1, "", ())
    assert second.answer == 0


BINARY = "image_path,caption_0,caption_1,correct_answer\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BINARY + "a.jpg,An effusion,No effusion,2\n", "line 2: correct_answer is 2"),
        (BINARY + "a.jpg,An effusion,No effusion,yes\n", "line 2: correct_answer is 'yes'"),
        (BINARY + "a.jpg,An effusion,,1\n", "line 2: caption_1 is empty"),
        (BINARY.replace("caption_1", "caption_2") + "a.jpg,An effusion,No effusion,1\n", "without a gap"),
    ],
)
def test_broken_binary_questions(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "chexpert_binary_mcq.csv", text)
    with pytest.raises(ValueError, match=rf"chexpert_binary_mcq\.csv.*{message}"):
        list(read(path))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("msr_vtt_mcq_rephrased_llama", MCQ_HEADER + MCQ_ROWS.replace("0,No dog", "7,No dog"), "line 3: correct_answer is 7"),
        ("msr_vtt_retrieval", RETRIEVAL_HEADER + RETRIEVAL_ROWS.replace("['A table.']", "A table."), "line 3: captions"),
        ("msr_vtt_retrieval", RETRIEVAL_HEADER.replace("captions", "caption") + RETRIEVAL_ROWS, "column captions is missing"),
        ("msr_vtt_retrieval", RETRIEVAL_HEADER + "a,b\n", "line 2: 2 fields where the header names 5"),
    ],
)
def test_broken_tables_of_videos(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write(tmp_path / f"{name}.csv", text)
    with pytest.raises(ValueError, match=rf"{name}\.csv.*{message}"):
        list(read(path))


def test_videos_and_the_synthetic_order(tmp_path: Path) -> None:
    video = write(tmp_path / "msr_vtt_mcq_rephrased_llama.csv", MCQ_HEADER + MCQ_ROWS)
    assert {r.media for r in read(video)} == {"video"}
    synthetic = write(
        tmp_path / "synthetic_mcq_llama3.1_rephrased.csv", MCQ_HEADER + MCQ_ROWS.replace("0,A cat and", "2,A cat and")
    )
    records = list(read(synthetic))
    assert records[2].answer == 2
    assert records[2].forms == ("affirmative", "hybrid", "affirmative", "negative")  # the third is the right one, affirmative


def test_a_folder_is_read_table_by_table(tmp_path: Path) -> None:
    write(tmp_path / "images" / COCO_MCQ, MCQ_HEADER + MCQ_ROWS)
    write(tmp_path / "images" / COCO_NEGATED, RETRIEVAL_HEADER + RETRIEVAL_ROWS)
    write(tmp_path / "videos" / "msr_vtt_retrieval.csv", RETRIEVAL_HEADER + RETRIEVAL_ROWS)
    write(tmp_path / "images" / "notes.csv", "a,b\n1,2\n")
    assert list(find_tables(tmp_path)) == [COCO_MCQ[:-4], COCO_NEGATED[:-4], "msr_vtt_retrieval"]
    assert len(list(read(tmp_path))) == 3 + 2 + 2
    write(tmp_path / "videos" / COCO_MCQ, MCQ_HEADER + MCQ_ROWS)
    with pytest.raises(ValueError, match="is there twice"):
        find_tables(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"COCO_val_retrieval\.csv"):
        read_negbench(write(tmp_path / "empty" / "x.txt", "").parent)


def test_every_published_name_has_a_task() -> None:
    assert len(TABLES) == 12
    assert {t.task for t in TABLES.values()} == {"choice", "binary_choice", "retrieval", "negated_retrieval"}
    assert sum(t.media == "video" for t in TABLES.values()) == 3


BROKEN = {
    "a column missing": (
        MCQ_HEADER.replace("correct_answer_template", "x") + MCQ_ROWS,
        "column correct_answer_template is missing",
    ),
    "no image column": (MCQ_HEADER.replace("image_path", "x") + MCQ_ROWS, "column image_path or filepath or video_path is missing"),
    "a gap in the options": (MCQ_HEADER.replace("caption_1", "caption_7") + MCQ_ROWS, "without a gap"),
    "a field lost": (MCQ_HEADER + MCQ_ROWS + "0,a,b,c\n", "line 5: 4 fields where the header names 7"),
    "an answer that is no number": (MCQ_HEADER + MCQ_ROWS.replace("0,No dog", "first,No dog"), "line 3: correct_answer is 'first'"),
    "an answer that is NaN": (MCQ_HEADER + MCQ_ROWS.replace("0,No dog", "nan,No dog"), "line 3: correct_answer is 'nan'"),
    "an answer that is no option": (MCQ_HEADER + MCQ_ROWS.replace("0,No dog", "4,No dog"), "line 3: correct_answer is 4"),
    "another template": (MCQ_HEADER + MCQ_ROWS.replace(",negative,", ",neg,"), "line 3: correct_answer_template is 'neg'"),
    "an empty option": (MCQ_HEADER + MCQ_ROWS.replace("No dog is there", " "), "line 3: caption_0 is empty"),
    "an unquoted quote": (MCQ_HEADER + MCQ_ROWS + '0,"a"b,c,d,e,hybrid,f\n', "line 5: broken table"),
    "no rows": (MCQ_HEADER, "no rows below the header"),
    "nothing": ("", "the file is empty"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_questions_name_file_and_line(tmp_path: Path, case: str) -> None:
    text, message = BROKEN[case]
    path = write(tmp_path / COCO_MCQ, text)
    with pytest.raises(ValueError, match=message) as error:
        list(read(path))
    assert COCO_MCQ in str(error.value)


@pytest.mark.parametrize(
    ("captions", "message"),
    [
        ("__import__('os').getcwd()", "captions is no list of texts"),
        ("['a', 1]", "captions is no list of texts"),
        ("['a', '']", "captions is empty, or one of them is"),
        ("[]", "captions is empty"),
        ("['a cat' 'a dog']", "a comma is missing between two texts"),
        ("['a cat', 'a dog", "captions is no list of texts"),
    ],
)
def test_a_list_is_data_and_must_be_one(tmp_path: Path, captions: str, message: str) -> None:
    path = write(tmp_path / "COCO_val_retrieval.csv", f'filepath,captions\na.jpg,"{captions}"\n')
    with pytest.raises(ValueError, match=f"line 2: {message}|line 2: captions: {message}"):
        list(read(path))


def test_a_class_cannot_be_there_and_not(tmp_path: Path) -> None:
    path = write(tmp_path / "COCO_val_retrieval.csv", RETRIEVAL_HEADER + RETRIEVAL_ROWS.replace("['dog']", "['cat']"))
    with pytest.raises(ValueError, match="line 2: cat is both in positive_objects"):
        list(read(path))


def test_bad_rows_can_be_skipped_and_are_counted(tmp_path: Path) -> None:
    rows = MCQ_ROWS + "9,a,b,c,d,hybrid,x.jpg\n0,a,b\n0,,b,c,d,hybrid,x.jpg\n" + MCQ_ROWS
    source = read(write(tmp_path / COCO_MCQ, MCQ_HEADER + rows), on_error="skip")
    assert len(list(source)) == 6
    assert (source.log.skipped, source.log.empty) == (3, 1)
    assert "line 5: correct_answer is 9" in source.log.problems[0]
    assert len(list(source)) == 6, "a source can be read again"
    assert source.log.skipped == 3


def test_options_are_shuffled_with_their_answer(tmp_path: Path) -> None:
    record = next(iter(read(write(tmp_path / COCO_MCQ, MCQ_HEADER + MCQ_ROWS))))
    places = set()
    for seed in range(40):
        other = record.shuffled(random.Random(seed))
        assert other.captions[other.answer or 0] == record.captions[0]
        assert other.forms[other.answer or 0] == "hybrid"
        assert sorted(other.captions) == sorted(record.captions)
        places.add(other.answer)
    assert places == {0, 1, 2, 3}


@given(st.lists(st.text(min_size=1).map(str.strip).filter(bool), min_size=1, max_size=5))
def test_any_captions_survive_the_list_literal(tmp_path_factory: pytest.TempPathFactory, captions: list[str]) -> None:
    import csv

    path = tmp_path_factory.mktemp("t") / "COCO_val_retrieval.csv"
    with path.open("w", encoding="utf-8", newline="", errors="surrogatepass") as file:
        writer = csv.writer(file)
        writer.writerow(["filepath", "captions"])
        writer.writerow(["a.jpg", repr(captions)])
    (record,) = read(path)
    assert list(record.captions) == captions
