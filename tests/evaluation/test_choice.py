import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.evaluation.fakes import LookupEncoder, random_unit

from clipmend.data.records import Caption, NegationData, Question
from clipmend.evaluation import ChoiceItem, choice_items, compare, evaluate_choice, read_choice
from clipmend.evaluation.tables import TableWarning

HEADER = "correct_answer,caption_0,caption_1,caption_2,caption_3,correct_answer_template,image_path"
ROW = "0,a cat and a dog,a bus but no cat,a bus,no cat,positive,x.jpg"


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def table(path: Path, *rows: str, header: str = HEADER, end: str = "\n") -> Path:
    return write(path, end.join([header, *rows]) + end)


# ---- reading -------------------------------------------------------------------------------------------------------------------


def test_reads_negbench_as_published(tmp_path: Path) -> None:
    hybrid = '0,"a dog, but no bus",a bus but no dog,a bus,no dog,hybrid,y.jpg'
    items = read_choice(table(tmp_path / "mcq.csv", ROW, hybrid))
    assert [i.template for i in items] == ["affirmative", "hybrid"]
    assert items[1].captions[0] == "a dog, but no bus"
    assert items[1].row == 3
    assert items[0].forms == ("affirmative", "hybrid", "affirmative", "negative")
    assert items.notes == []


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_bom_and_line_ends(tmp_path: Path, end: str) -> None:
    path = write(tmp_path / "mcq.csv", "\ufeff" + end.join([HEADER, ROW, "", ""]))
    assert len(read_choice(path)) == 1


def test_extra_and_reordered_columns_are_fine(tmp_path: Path) -> None:
    header = ",image_path,extra,caption_1,caption_0,correct_answer_template,correct_answer,subset"
    items = read_choice(table(tmp_path / "mcq.csv", "7,x.jpg,junk,no cat,a cat,affirmative,1.0,reserved_kind", header=header))
    assert items[0] == ChoiceItem("x.jpg", ("a cat", "no cat"), 1, "affirmative", "reserved_kind", None, 2)


def test_parse_is_read(tmp_path: Path) -> None:
    parse = json.dumps([{"asserts": ["cat"], "denies": []}, {"asserts": ["cat"], "denies": ["dog"], "wording": "but_no"}])
    quoted = '"' + parse.replace('"', '""') + '"'
    header = "correct_answer,caption_0,caption_1,correct_answer_template,image_path,parse"
    items = read_choice(table(tmp_path / "mcq.csv", f"1,a cat,a cat but no dog,hybrid,x.jpg,{quoted}", header=header))
    assert items[0].parse is not None
    assert items[0].parse[1] == Caption("a cat but no dog", -1, "hybrid", ("cat",), ("dog",), "but_no")
    assert items[0].forms == ("affirmative", "hybrid")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        (HEADER + "\n", "no rows"),
        (HEADER.replace("image_path", "mine") + "\n" + ROW, "no column is called as images usually are"),
        (HEADER.replace("caption_2", "caption_1") + "\n" + ROW, "caption_1 appears twice"),
        (HEADER.replace("caption_2", "caption_7") + "\n" + ROW, "without a gap"),
        (HEADER + "\n" + ROW + ",more", "line 2: 8 fields where the header names 7"),
        (HEADER + "\n" + ROW + "\n0,a,b", "line 3: 3 fields"),
        (HEADER + "\n" + ROW.replace("0,", "first,", 1), "line 2: correct_answer is 'first', not an integer"),
        (HEADER + "\n" + ROW.replace("0,", "0.5,", 1), "line 2: correct_answer is '0.5', not an integer"),
        (HEADER + "\n" + ROW.replace("0,", "nan,", 1), "line 2: correct_answer is 'nan', not an integer"),
        (HEADER + "\n" + ROW.replace("0,", "inf,", 1), "line 2: correct_answer is 'inf', not an integer"),
        (HEADER + "\n" + ROW.replace("0,", ",", 1), "line 2: correct_answer is '', not an integer"),
        (HEADER + "\n" + ROW.replace("0,", "4,", 1), "line 2: correct_answer is 4, but the options are 0 to 3"),
        (HEADER + "\n" + ROW.replace("0,", "-1,", 1), "line 2: correct_answer is -1"),
        (HEADER + "\n" + ROW.replace("positive", "maybe"), "line 2: correct_answer_template is 'maybe'"),
        (HEADER + "\n" + ROW.replace("a bus,", "  ,"), "line 2: caption_2 is empty"),
        (HEADER + "\n" + ROW.replace("x.jpg", ""), "line 2: image_path is empty"),
        (HEADER + "\n" + '0,"a cat', "broken table"),
        (HEADER + ",parse\n" + ROW + ",not json", "line 2: parse is not JSON"),
        (HEADER + ",parse\n" + ROW + ",[]", "line 2: parse must be a list of 4"),
        (HEADER + ",parse\n" + ROW + ',"[1,2,3,4]"', "line 2: parse holds 1"),
        (HEADER + ",parse\n" + ROW + ',"[{""asserts"": ""cat""}, {}, {}, {}]"', "line 2: parse: asserts must be a list"),
    ],
)
def test_broken_tables_say_where(tmp_path: Path, content: str, message: str) -> None:
    path = write(tmp_path / "broken.csv", content)
    with pytest.raises(ValueError, match=r"broken\.csv") as caught:
        read_choice(path)
    assert message in str(caught.value)


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "latin.csv", HEADER + "\n" + ROW.replace("a bus,", "une forêt,"), "latin-1")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_choice(path)
    with pytest.raises(FileNotFoundError):
        read_choice(tmp_path / "none.csv")


def test_line_numbers_survive_line_breaks_in_captions(tmp_path: Path) -> None:
    path = table(tmp_path / "mcq.csv", ROW.replace("a bus,", '"a\nbus",'), ROW.replace("0,", "9,", 1))
    with pytest.raises(ValueError, match="line 4: correct_answer is 9"):
        read_choice(path)


def test_duplicates_are_reported_and_kept(tmp_path: Path) -> None:
    with pytest.warns(TableWarning, match="1 duplicate questions"):
        items = read_choice(table(tmp_path / "mcq.csv", ROW, ROW))
    assert len(items) == 2
    assert "line 3 (as 2)" in items.notes[0]


# ---- scoring -------------------------------------------------------------------------------------------------------------------


def questions(count: int, options: int, rng: np.random.Generator) -> list[ChoiceItem]:
    forms = ("affirmative", "negative", "hybrid")
    return [
        ChoiceItem(
            f"{rng.integers(0, 4)}.png",
            tuple(f"text {t}" for t in rng.integers(0, 12, options)),
            int(rng.integers(0, options)),
            forms[rng.integers(0, 3)],
            ("standard", "reserved")[rng.integers(0, 2)],
        )
        for _ in range(count)
    ]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(2, 5))
def test_against_the_plain_loop(seed: int, count: int, options: int) -> None:
    rng = np.random.default_rng(seed)
    # Whole numbers: sums are exact, and there are ties.
    texts = {f"text {t}": rng.integers(-1, 2, 2) for t in range(12)}
    images = {f"{i}.png": [[1, 0], [0, 1], [-1, 0], [0, -1]][i] for i in range(4)}
    items = questions(count, options, rng)
    result = evaluate_choice(LookupEncoder(texts), items, image_embeddings={n: torch.tensor(v) for n, v in images.items()})
    for q, item in enumerate(items):
        scores = [float(np.dot(images[item.image], texts[c])) for c in item.captions]
        others = [s for k, s in enumerate(scores) if k != item.answer]
        assert result.correct[q] == (scores[item.answer] > max(others))
    for template in {i.template for i in items}:
        rows = [q for q, i in enumerate(items) if i.template == template]
        assert result.metrics[f"acc_{template}"] == pytest.approx(np.mean(result.correct[rows]))
    assert result.accuracy == pytest.approx(result.correct.mean())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_order_of_options_and_questions_says_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts = {f"text {t}": row for t, row in enumerate(random_unit(rng, 12, 8))}
    images = {f"{i}.png": torch.from_numpy(row) for i, row in enumerate(random_unit(rng, 4, 8))}
    items = questions(15, 4, rng)
    before = evaluate_choice(LookupEncoder(texts), items, image_embeddings=images)
    shuffled = []
    for item in items:
        order = rng.permutation(4)
        captions = tuple(item.captions[k] for k in order)
        shuffled.append(ChoiceItem(item.image, captions, int(np.flatnonzero(order == item.answer)[0]), item.template, item.subset))
    after = evaluate_choice(LookupEncoder(texts), shuffled, image_embeddings=images)
    np.testing.assert_array_equal(before.correct, after.correct)
    back = evaluate_choice(LookupEncoder(texts), items[::-1], image_embeddings=images)
    np.testing.assert_array_equal(before.correct[::-1], back.correct)


def test_a_constant_scorer_gets_nothing() -> None:
    rng = np.random.default_rng(0)
    items = questions(50, 4, rng)
    vector = random_unit(rng, 1, 37)[0]
    images = {f"{i}.png": torch.from_numpy(row) for i, row in enumerate(random_unit(rng, 4, 37))}
    result = evaluate_choice(LookupEncoder(default=vector), items, image_embeddings=images)
    assert result.accuracy == 0
    assert result.details()["ties"] == 50
    assert all(row == {"tie": n} for row in result.confusion().values() for n in row.values())
    assert any("50 of 50 questions tied" in note for note in result.notes)


def test_each_image_and_caption_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    items = questions(40, 4, rng)
    images = {}
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(b"x")
        images[f"{i}.png"] = random_unit(rng, 1, 4)[0]
    encoder = LookupEncoder({f"text {t}": random_unit(rng, 1, 4)[0] for t in range(12)}, images)
    evaluate_choice(encoder, items, image_root=tmp_path)
    assert encoder.calls == {"texts": len({c for i in items for c in i.captions}), "images": len({i.image for i in items})}


def two_questions() -> list[ChoiceItem]:
    return [
        ChoiceItem("a.png", ("yes", "no"), 0, "affirmative", row=2),
        ChoiceItem("b.png", ("yes", "no"), 1, "negative", row=3),
    ]


def test_the_score_correction_counts_and_can_be_left_out() -> None:
    texts = {"yes": [1.0, 0.0], "no": [0.9, 0.1]}
    images = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    encoder = LookupEncoder(texts, correction=lambda i, t: t[:, 1] * 10)
    assert evaluate_choice(encoder, two_questions(), image_embeddings=images).correct.tolist() == [False, True]
    plain = evaluate_choice(encoder, two_questions(), image_embeddings=images, score_correction=False)
    assert plain.correct.tolist() == [True, False]


def test_nan_names_the_row() -> None:
    encoder = LookupEncoder({"yes": [1.0, 0.0], "no": [0.0, 1.0]}, correction=lambda i, t: torch.where(t[:, 1] > 0, torch.nan, 0.0))
    items = read_like(two_questions(), "mcq.csv")
    with pytest.raises(ValueError, match=r"mcq.csv: line 2: question about 'a.png': the score of caption_1 is nan"):
        evaluate_choice(encoder, items, image_embeddings=torch.eye(2))
    with pytest.raises(ValueError, match="embedding of text 'no' is not finite"):
        evaluate_choice(LookupEncoder({"yes": [1, 0], "no": [np.nan, 1]}), items, image_embeddings=torch.eye(2))
    with pytest.raises(ValueError, match=r"embedding of image 'b.png' is not finite"):
        evaluate_choice(
            LookupEncoder({"yes": [1, 0], "no": [0, 1]}), items, image_embeddings=torch.tensor([[1, 0], [0, torch.inf]])
        )


def read_like(items: list[ChoiceItem], source: str):  # type: ignore[no-untyped-def]
    from clipmend.evaluation.tables import Rows

    return Rows(items, source)


def test_one_question_one_template() -> None:
    item = two_questions()[:1]
    result = evaluate_choice(LookupEncoder({"yes": [1, 0], "no": [0, 1]}), item, image_embeddings=torch.tensor([[1.0, 0.0]]))
    assert set(result.metrics) == {"acc", "acc_affirmative"}
    assert result.measures()["acc"].count == 1
    with pytest.raises(ValueError, match="no questions"):
        evaluate_choice(LookupEncoder(default=[1.0]), [])


def test_missing_images(tmp_path: Path) -> None:
    encoder = LookupEncoder({"yes": [1, 0], "no": [0, 1]}, {"a.png": [1, 0], "b.png": [0, 1]})
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "b.png").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=r"1 of 2 images \(a\.png\) not found under .*; try --image-root DIR"):
        evaluate_choice(encoder, two_questions(), image_root=tmp_path)
    result = evaluate_choice(encoder, two_questions(), image_root=tmp_path, on_missing="skip")
    assert (len(result.correct), result.skipped) == (1, 1)
    assert "1 of 2 questions skipped" in result.notes[0]
    with pytest.raises(FileNotFoundError):
        evaluate_choice(encoder, two_questions(), image_root=tmp_path / "elsewhere", on_missing="skip")


def test_paths_of_other_machines_are_found_by_their_last_part(tmp_path: Path) -> None:
    encoder = LookupEncoder({"yes": [1, 0], "no": [0, 1]}, {"a b é.png": [1, 0]})
    (tmp_path / "a b é.png").write_bytes(b"x")
    for name in ("/data/coco/val2017/a b é.png", r"C:\coco\a b é.png", "a b é.png"):
        items = [ChoiceItem(name, ("yes", "no"), 0, "affirmative")]
        assert evaluate_choice(encoder, items, image_root=tmp_path).accuracy == 1


def test_confusion_and_json(tmp_path: Path) -> None:
    texts = {"yes": [1, 0], "no": [0, 1]}
    result = evaluate_choice(LookupEncoder(texts, name="open_clip:ViT-B-32/openai"), two_questions(), image_embeddings=torch.eye(2))
    flipped = evaluate_choice(LookupEncoder(texts), two_questions(), image_embeddings=torch.eye(2).flip(0))
    assert result.confusion() == {"affirmative": {"right": 1}, "negative": {"right": 1}}
    assert flipped.confusion() == {"affirmative": {"other": 1}, "negative": {"other": 1}}
    content = json.loads(result.save(tmp_path / "deep" / "out.json").read_text())
    assert {k: content[k] for k in ("model", "pretrained", "task", "language")} == {
        "model": "ViT-B-32",
        "pretrained": "openai",
        "task": "multiple_choice",
        "language": "en",
    }
    assert content["metrics"]["acc"] == 1.0
    assert content["counts"]["acc"] == 2
    assert content["intervals"]["acc"][1] == 1.0
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["out.json"]
    assert result.table().row_count == 3
    assert flipped.confusion_table().row_count == 2


def test_compare_is_paired_and_refuses_other_items() -> None:
    texts = {"yes": [1, 0], "no": [0, 1]}
    items = [ChoiceItem(f"{i}.png", ("yes", "no"), 0, "affirmative") for i in range(40)]
    good = {f"{i}.png": torch.tensor([1.0, 0.0]) for i in range(40)}
    bad = {f"{i}.png": torch.tensor([1.0, 0.0] if i < 30 else [0.0, 1.0]) for i in range(40)}
    first = evaluate_choice(LookupEncoder(texts), items, image_embeddings=bad)
    second = evaluate_choice(LookupEncoder(texts), items, image_embeddings=good)
    found = compare(first, second).differences["acc"]
    assert found.difference == pytest.approx(0.25)
    assert 0.08 < found.low < 0.2 < 0.3 < found.high < 0.45
    same = compare(second, second).differences["acc"]
    assert same.difference == 0
    assert -0.12 < same.low < -0.03  # forty questions that agree do not prove that others would
    assert 0.03 < same.high < 0.12
    other = evaluate_choice(LookupEncoder(texts), items[:39], image_embeddings=good)
    with pytest.raises(ValueError, match="different items"):
        compare(first, other)
    reordered = evaluate_choice(LookupEncoder(texts), items[::-1], image_embeddings=good)
    with pytest.raises(ValueError, match="different items"):
        compare(first, reordered)
    with pytest.raises(ValueError, match="resampled over images"):
        compare(first, second, over="kinds")


def test_questions_of_negation_data() -> None:
    captions = [Caption("a cat", 0, asserts=("cat",)), Caption("no cat", -1, "negative", denies=("cat",))]
    data = NegationData(["img"], [frozenset({"cat"})], captions, [Question(0, (1, 0), 1, "affirmative")])
    items = choice_items(data)
    assert items[0].captions == ("no cat", "a cat")
    assert items[0].forms == ("negative", "affirmative")
    result = evaluate_choice(
        LookupEncoder({"a cat": [1, 0], "no cat": [0, 1]}), items, image_embeddings={"0": torch.tensor([1.0, 0.0])}
    )
    assert result.accuracy == 1
