"""From presence lists to captions, questions and tables, and from there to a patch."""

from __future__ import annotations

import csv
import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import clipmend
from backbones.tiny import clip_model, clip_tokenizer
from clipmend.cli.app import app
from clipmend.data.annotated import Denials, negation_data
from clipmend.data.blind import MOST, Truths, blind_scores
from clipmend.data.collect import collect
from clipmend.data.folder import negation_data_from_folder
from clipmend.data.images import ImageError
from clipmend.data.negate import negate
from clipmend.data.readers import Record, Source, read
from clipmend.data.records import FALSE, FORMS, TRUE, UNKNOWN, Caption, NegationData, Question, truth_matrix
from clipmend.data.scenes import RESERVED_KINDS, write_scenes
from clipmend.data.scenes.wordings import RESERVED_WORDINGS
from clipmend.evaluation import choice_items, evaluate, evaluate_choice, read_choice
from clipmend.negation import PeakPatchConfig
from data.miniatures import coco, voc
from data.readers.made import encoded
from helpers import RandomDualEncoder


@pytest.fixture(scope="module")
def coco_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coco(tmp_path_factory.mktemp("coco"), 150)


@pytest.fixture(scope="module")
def voc_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return voc(tmp_path_factory.mktemp("voc"), 120)


def source_of(*records: Record, vocabulary: set[str] | None = None) -> Source:
    return Source("made", lambda log: iter(records), vocabulary=vocabulary)


def with_picture(name: str, present: set[str] | None, absent: set[str] | None, *captions: str) -> Record:
    frozen = [None if s is None else frozenset(s) for s in (present, absent)]
    return Record(name, captions, present=frozen[0], absent=frozen[1], content=encoded(), where=f"made: {name}")


# Truth


def test_what_is_unknown_of_one_image_is_neither_true_nor_false() -> None:
    captions = [Caption("no cat", denies=("cat",), form="negative"), Caption("a cat", asserts=("cat",))]
    truth = truth_matrix([{"cat"}, set(), set()], captions, {"cat"}, [set(), set(), {"cat"}])
    assert truth.tolist() == [[FALSE, TRUE], [TRUE, FALSE], [UNKNOWN, UNKNOWN]]
    with pytest.raises(ValueError, match="2 images but 1 sets of unknown atoms"):
        NegationData(["a", "b"], [frozenset(), frozenset()], [], unknown=[frozenset()])


@pytest.mark.parametrize("kind", ["coco", "voc"])
@pytest.mark.parametrize("wordings", ["training", "all"])
def test_truthful_data_are_true_where_they_say_so(coco_folder: Path, voc_folder: Path, kind: str, wordings: str) -> None:
    source = read(coco_folder if kind == "coco" else voc_folder)
    data = negation_data(source, wordings=wordings, seed=4)
    records = list(source)
    assert len(data.images) == len(records)
    known = Counter[str]()
    for k, record in enumerate(records):
        assert len(data.facts[k]) == len(record.present or ())
        known["unknown"] += len(data.unknown[k]) if data.unknown else 0
    assert known["unknown"] > 0, "VOC's difficult objects, COCO's captions that mention what is not annotated"
    truth = data.truth(range(len(data.images)), range(len(data.captions)))
    facts_alone = truth_matrix(data.facts, data.captions, data.vocabulary, data.unknown)
    forms = Counter[tuple[str, bool]]()
    for row, caption in enumerate(data.captions):
        if caption.image >= 0:
            assert truth[caption.image, row] == TRUE, caption
            assert facts_alone[caption.image, row] != FALSE, caption
            if caption.complete:
                assert facts_alone[caption.image, row] == TRUE, caption
            assert not caption.complete or caption.asserts or caption.denies
        forms[caption.form, caption.image >= 0] += 1
    assert all(forms[form, own] > 50 for form in FORMS for own in (True, False)), forms
    for question in data.questions:
        answers = facts_alone[question.image, list(question.options)]
        assert answers.tolist().count(TRUE) == 1
        assert answers.tolist().count(FALSE) == 3, "no wrong option is unknown"
        assert answers[question.answer] == TRUE
        assert data.captions[question.options[question.answer]].form == question.template
    asked = Counter(q.template for q in data.questions)
    assert len(set(asked.values())) == 1, asked
    assert len(Counter(q.answer for q in data.questions)) == 4
    used = {c.wording for c in data.captions} & set(RESERVED_WORDINGS)
    assert used == (set(RESERVED_WORDINGS) if wordings == "all" else set())


@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_questions_cannot_be_answered_without_the_image(coco_folder: Path, voc_folder: Path, kind: str) -> None:
    annotated = collect(read(coco_folder if kind == "coco" else voc_folder))
    data = negation_data(annotated, questions=900, seed=1)
    scores = blind_scores(data, annotated.absent)
    assert scores is not None
    assert scores.questions == 900
    assert scores.chance == 0.25
    # by construction of the mixes of forms; three standard errors of 900 answers are 4.3 points
    assert scores.form == pytest.approx(0.25, abs=0.02)
    assert scores.usually_true == pytest.approx(0.25, abs=0.05)
    assert scores.only_true == pytest.approx(0.25, abs=0.05)
    assert scores.shuffled == pytest.approx(0.25, abs=0.05)


def test_blind_scores_notice_what_gives_answers_away(coco_folder: Path) -> None:
    annotated = collect(read(coco_folder))
    data = negation_data(annotated, seed=1)
    # NegBench's own make: the right form stands twice, and frequent things are asserted against rare ones
    questions, captions, rng = [], [], random.Random(0)
    for k, (present, absent) in enumerate(zip(annotated.present, annotated.absent, strict=True)):
        if not present or not absent:
            continue
        shown, gone = rng.choice(sorted(present)), rng.choice(sorted(absent))
        first = len(captions)
        captions += [
            Caption("right", form="negative", denies=(gone,)),
            Caption("hybrid", form="hybrid", asserts=(gone,), denies=(shown,)),
            Caption("affirmative", form="affirmative", asserts=(gone,)),
            Caption("negative", form="negative", denies=(shown,)),
        ]
        questions.append(Question(k, tuple(range(first, first + 4)), 0, "negative"))
    leaky = NegationData(data.images, data.facts, captions, questions, vocabulary=data.vocabulary)
    scores = blind_scores(leaky, annotated.absent)
    assert scores is not None
    assert scores.form == 0.5
    assert scores.usually_true > 0.4
    assert scores.only_true > 0.9
    assert scores.shuffled > 0.4
    assert blind_scores(NegationData(data.images, data.facts, captions), annotated.absent) is None


def test_truths_count_like_the_truth_matrix() -> None:
    rng, atoms = random.Random(5), "abcdef"
    present = [frozenset(a for a in atoms if rng.random() < 0.4) for _ in range(77)]
    absent = [frozenset(a for a in atoms if a not in p and rng.random() < 0.8) for p in present]
    unknown = [frozenset(atoms) - p - a for p, a in zip(present, absent, strict=True)]
    captions = [Caption("x", asserts=tuple(rng.sample(atoms, 2)), denies=tuple(rng.sample(atoms, 1))) for _ in range(40)]
    truth = truth_matrix(present, captions, set(atoms), unknown)
    truths = Truths(present, absent)
    assert truths.usually_true(captions) == (truth == TRUE).sum(0).tolist()
    only = [int(((truth[:, k] == TRUE) & (truth[:, :4] == FALSE).sum(1).__eq__(3)).sum()) for k in range(4)]
    assert truths.only_true(captions[:4]) == only
    assert Truths([frozenset()] * (MOST + 5), [frozenset("a")] * (MOST + 5)).count == MOST


def test_the_released_construction(coco_folder: Path) -> None:
    data = negation_data(read(coco_folder), reading="released", seed=2)
    assert {c.form for c in data.captions} == {"affirmative", "hybrid"}
    assert len({c.wording for c in data.captions if c.denies}) == 3
    for question in data.questions:
        options = [data.captions[k] for k in question.options]
        own = [o for o in options if o.image == question.image]
        others = [o for o in options if o.image != question.image]
        right = options[question.answer]
        assert question.template == "affirmative"
        assert right in own
        assert not right.denies
        (negated,) = (o for o in own if o is not right)
        assert right.text.rstrip(".").lower() in negated.text.lower()
        assert len(negated.denies) == 1
        assert not data.facts[question.image] & set(negated.denies), "an absent thing"
        assert [bool(o.denies) for o in others] == [False, False]
        assert all(data.facts[o.image] & data.facts[question.image] for o in others)
    assert len({q.image for q in data.questions}) == len(data.questions) > 100
    assert len({q.answer for q in data.questions}) == 4


# What is read


def test_readers_facts_are_kept_as_they_are() -> None:
    records = [
        with_picture("a.jpg", {"dog"}, {"cat"}, "A dog.", "No cat here"),
        with_picture("b.jpg", {"cat"}, {"dog"}, "A dog and a cat"),  # the caption mentions a dog
        with_picture("c.jpg", None, None, "A bird"),
        with_picture("a.jpg", None, {"bird"}, "A brown dog"),
    ]
    data = collect(source_of(*records))
    assert data.names == ["a.jpg", "b.jpg"]
    assert data.captions == [("A dog.", "A brown dog"), ("A dog and a cat",)]
    assert data.absent == [{"cat", "bird"}, set()]
    assert [data.unknown(k) for k in range(2)] == [set(), {"dog", "bird"}]
    assert data.notes == [
        "1 images without annotation left out",
        "1 captions that deny something already left out",
        "1 times a caption mentions what is annotated absent: taken as unknown",
    ]
    made = negation_data(data)
    assert made.images[0].size == (16, 12), "pictures that the source holds are opened"
    known = {atom for c in made.captions if c.image == 1 for atom in (*c.asserts, *c.denies)}
    assert known <= {"cat"}, "nothing is said about the dog"


def test_a_vocabulary_stands_in_for_absent_lists() -> None:
    record = with_picture("a.jpg", {"dog"}, None)
    assert collect(source_of(record)).absent == [frozenset()]
    assert collect(source_of(record, vocabulary={"dog", "tv"})).absent == [{"TV"}]


def test_what_cannot_be_used_is_named(tmp_path: Path, coco_folder: Path) -> None:
    with pytest.raises(ValueError, match="made: says of no image what it shows"):
        collect(source_of(with_picture("a.jpg", None, None, "x")))
    with pytest.raises(ValueError, match=r"made: a\.jpg: a\.jpg is annotated otherwise at made: a\.jpg: dog"):
        collect(source_of(with_picture("a.jpg", {"dog"}, {"cat"}), with_picture("a.jpg", {"cow"}, {"dog"})))
    with pytest.raises(ValueError, match=r"v\.mp4 is a video"):
        collect(source_of(Record("v.mp4", present=frozenset("a"), media="video")))
    gone = Record("nowhere.jpg", present=frozenset({"dog"}), absent=frozenset({"cat"}), where="list: line 3")
    with pytest.raises(ImageError, match=r"list: line 3: nowhere\.jpg: not found under"):
        collect(source_of(gone))
    left = collect(source_of(gone, with_picture("a.jpg", {"dog"}, {"cat"})), on_missing="skip")
    assert (left.names, left.notes) == (["a.jpg"], ["1 images whose file is missing left out"])
    with pytest.raises(ValueError, match="1 images are missing"):
        collect(source_of(gone), on_missing="skip")
    with pytest.raises(ValueError, match="there is no option wording; there are absent"):
        negation_data(left, wording="all")
    with pytest.raises(ValueError, match="nothing is called gnu; reserved things go by cat, dog"):
        negation_data(left, reserved={"gnu"})
    for option, value in {"reading": "x", "absent": "x", "wordings": "x", "per_image": 0, "questions": -1, "seed": -1}.items():
        with pytest.raises(ValueError, match=f"{option}|no wordings called"):
            Denials(**{option: value})


def test_an_image_that_shows_nothing_still_lacks_things() -> None:
    records = [with_picture(f"{k}.jpg", set(), {"dog", "cat", "cow"}) for k in range(4)]
    data = negation_data(source_of(*records), questions=3)
    assert {c.form for c in data.captions if c.image >= 0} == {"negative"}
    assert all(not c.asserts for c in data.captions if c.image >= 0)


def test_one_label_an_image_is_enough_and_what_it_does_not_allow_is_noted() -> None:
    kinds = ("dog", "cat", "cow", "bread", "tv")
    records = [with_picture(f"{k}.jpg", {kinds[k % 5]}, set(kinds) - {kinds[k % 5]}) for k in range(25)]
    annotated = collect(source_of(*records))
    data = negation_data(annotated, seed=3)
    assert Counter(q.template for q in data.questions) == dict.fromkeys(FORMS, 9)
    assert any("another mix of forms than planned" in note for note in annotated.notes)


def test_reserved_things_are_asserted_and_never_denied(tmp_path: Path) -> None:
    write_scenes(tmp_path / "train", 60, 16, 3)
    source = read(tmp_path / "train")
    assert source.reserved == set(RESERVED_KINDS)
    data = negation_data(source, reserved={"cat"}, seed=1)
    kept = {*RESERVED_KINDS, "cat"}
    assert data.reserved == kept
    assert not {atom for c in data.captions for atom in c.denies} & kept
    assert {atom for c in data.captions for atom in c.asserts} >= kept
    write_scenes(tmp_path / "test", 4, 16, 3, "test")
    test = read(tmp_path / "test")
    assert test.reserved == frozenset()
    first = next(iter(test))
    assert len(first.captions) == 4
    assert (first.present or frozenset()).isdisjoint(first.absent or ())
    table = tmp_path / "test" / "scenes.jsonl"
    table.write_text(table.read_text().replace('"background"', '"backdrop"', 1))
    with pytest.raises(ValueError, match=r"scenes\.jsonl: line 1: .*background"):
        list(test)
    skipping = read(tmp_path / "test", on_error="skip")
    assert (len(list(skipping)), skipping.log.skipped) == (3, 1)


def test_denials_lean_to_what_stands_together(coco_folder: Path) -> None:
    records = [
        with_picture(f"{k}.jpg", {"fork", "knife"} if k % 2 else {"plane", "kite"}, None) for k in range(60)
    ] + [with_picture(f"x{k}.jpg", {"fork"}, None) for k in range(30)]  # fmt: skip
    source = source_of(*records, vocabulary={"fork", "knife", "plane", "kite"})
    shares = {}
    for how in ("plausible", "random"):
        data = negation_data(source, absent=how, seed=5)
        denied = Counter(a for c in data.captions if c.image >= 60 for a in c.denies)
        shares[how] = denied["knife"] / sum(denied.values())
    assert shares["plausible"] > 0.85, "two-thing wordings need a second"
    assert 0.2 < shares["random"] < 0.5


# The folder


@pytest.fixture(scope="module")
def negated(voc_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "negated"
    negate(read(voc_folder), folder, seed=1)
    return folder


def test_a_folder_reads_back_as_the_data_made(negated: Path, voc_folder: Path) -> None:
    made, back = negation_data(read(voc_folder), seed=1), negation_data_from_folder(negated)
    assert [Path(p).resolve() for p in back.images] == [Path(p).resolve() for p in made.images]
    assert (back.facts, back.unknown, back.vocabulary) == (made.facts, made.unknown, made.vocabulary)
    assert back.captions == made.captions
    assert back.questions == made.questions
    about = json.loads((negated / "data.json").read_text())
    assert about["rows"]["choice.csv"] == sum(about["answers"].values()) == len(made.questions)
    assert about["reading"] == "truthful"
    assert about["blind"]["chance"] == 0.25


def test_incomplete_captions_survive_the_folder(coco_folder: Path, tmp_path: Path) -> None:
    for reading in ("truthful", "released"):
        negate(read(coco_folder), tmp_path / reading, reading=reading, seed=1)
        made, back = negation_data(read(coco_folder), reading=reading, seed=1), negation_data_from_folder(tmp_path / reading)
        assert back.captions[: len(made.captions)][:600] == made.captions[:600]
        for mine, its in zip(made.questions, back.questions, strict=True):
            assert (its.image, its.answer, its.template) == (mine.image, mine.answer, mine.template)
            for a, b in zip(mine.options, its.options, strict=True):
                ours, theirs = made.captions[a], back.captions[b]
                assert (ours.text, ours.form, ours.complete) == (theirs.text, theirs.form, theirs.complete)
    rows = list(csv.DictReader((tmp_path / "truthful" / "negated_retrieval.csv").open(encoding="utf-8")))
    assert len(rows) == 150


def test_equal_seeds_write_equal_bytes(negated: Path, voc_folder: Path, tmp_path: Path) -> None:
    beside = negated.parent / "again"
    negate(read(voc_folder), beside, seed=1)
    for path in sorted(negated.iterdir()):
        assert (beside / path.name).read_bytes() == path.read_bytes(), path.name
    negate(read(voc_folder), beside, seed=2, overwrite=True)
    assert (beside / "choice.csv").read_bytes() != (negated / "choice.csv").read_bytes()


def test_reserved_wordings_only_on_request(voc_folder: Path, tmp_path: Path) -> None:
    negate(read(voc_folder), tmp_path / "r", wordings="reserved", seed=1)
    with (tmp_path / "r" / "exclusion.csv").open(encoding="utf-8") as file:
        assert {row["subset"] for row in csv.DictReader(file)} == {"reserved_wording"}
    rows = list(csv.DictReader((tmp_path / "r" / "captions.csv").open(encoding="utf-8")))
    assert {row["wording"] for row in rows} == {"", *RESERVED_WORDINGS}
    assert negation_data_from_folder(tmp_path / "r", "reserved_wording").questions


def test_a_folder_can_stand_alone(voc_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    negate(read(voc_folder), out, copy_images=True, limit=5, questions=3)
    moved = out.rename(tmp_path / "moved")
    assert len(negation_data_from_folder(moved).images) == 5
    held = source_of(*(with_picture(f"{k}.jpg", {"dog"}, {"cat", "cow"}) for k in range(3)))
    negate(held, tmp_path / "held", questions=0)
    assert [p.suffix for p in negation_data_from_folder(tmp_path / "held").images] == [".jpg"] * 3
    assert not (tmp_path / "held" / "choice.csv").exists()


def test_a_failure_leaves_everything_as_it_was(negated: Path, voc_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="not empty: choose another folder"):
        negate(read(voc_folder), negated)
    before = {p.name: p.read_bytes() for p in negated.iterdir()}
    bad = source_of(with_picture("a.jpg", {"dog"}, {"cat"}), Record("b.jpg", present=frozenset({"dog"}), where="x"))
    with pytest.raises(ImageError):
        negate(bad, negated, overwrite=True)
    assert {p.name: p.read_bytes() for p in negated.iterdir()} == before
    assert not [p for p in negated.parent.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("presence.csv", '"[""', '"[""gnu"", ""', r"presence\.csv, line \d+: gnu is not in the vocabulary"),
        ("presence.csv", "000002", "000001", r"presence\.csv, line 3: the image .* was named in"),
        ("presence.csv", "000001", "nowhere", r"presence\.csv, line 2: the image .*nowhere\.jpg' is missing"),
        ("presence.csv", "present", "there", r"presence\.csv, line 1: no column present"),
        ("presence.csv", "[]", "[", r"presence\.csv, line \d+: \w+ is not a JSON list"),
        ("data.json", '"vocabulary"', '"words"', r"data\.json: vocabulary is not a list"),
        ("data.json", "{", "", r"data\.json: not JSON"),
        (
            "captions.csv",
            "JPEGImages/000001",
            "JPEGImages/x",
            r"captions\.csv, line \d+: the image .* is not in scenes\.jsonl or",
        ),
    ],
)
def test_broken_folders_are_named(negated: Path, tmp_path: Path, name: str, old: str, new: str, message: str) -> None:
    copy = negated.parent / f"copy-{tmp_path.name}"
    copy.mkdir()
    for path in negated.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    text = (copy / name).read_text(encoding="utf-8")
    assert old in text
    (copy / name).write_text(text.replace(old, new, 1), encoding="utf-8", newline="")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        negation_data_from_folder(copy)
    (copy / "data.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"data\.json is missing"):
        negation_data_from_folder(copy)


# To a patch


def test_from_coco_to_a_patch_to_an_answer(tmp_path: Path) -> None:
    """negate, fit a tiny CLIP with random weights from the folder, evaluate: the command line's own path."""
    root = coco(tmp_path / "coco", 40)
    encoder_folder = tmp_path / "clip"
    tokenizer = clip_tokenizer()
    clip_model(tokenizer).save_pretrained(encoder_folder)
    tokenizer.save_pretrained(encoder_folder)
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(encoder_folder)
    run = CliRunner()
    done = run.invoke(app, ["data", "negate", str(root), "-o", str(tmp_path / "data"), "--seed", "3", "--questions", "30"])
    assert done.exit_code == 0, done.output
    assert "30 choice.csv" in done.output
    assert "answered without the image (chance 25.0%)" in done.output
    assert "right: " in done.output
    patch = tmp_path / "patch"
    fit = ["fit", str(encoder_folder), "--data", str(tmp_path / "data"), "-o", str(patch), "--steps", "3", "--hidden", "16"]
    done = run.invoke(app, [*fit, "--peak", "2", "--anchor", "1", "--images-only", "--device", "cpu"])
    assert done.exit_code == 0, (done.output, done.exception)
    result = tmp_path / "choice.json"
    done = run.invoke(
        app,
        ["evaluate", "choice", str(encoder_folder), "--patch", str(patch), "--data", str(tmp_path / "data" / "choice.csv"),
         "--json", str(result), "--device", "cpu"],
    )  # fmt: skip
    assert done.exit_code == 0, (done.output, done.exception)
    content = json.loads(result.read_text())
    assert "acc" in json.dumps(content)


def test_data_in_python_fit_as_they_are_and_are_learned(voc_folder: Path) -> None:
    encoder = RandomDualEncoder(context_length=40)
    data = negation_data(read(voc_folder), seed=1)
    config = PeakPatchConfig(
        peak=2, anchor=1, hidden=64, steps=120, batch_size=32, question_batch=64, epochs=None, text_only_weight=0.0, heads=4,
        ecn_learning_rate=3e-3, scn_learning_rate=3e-3, eval_every=40, validation_fraction=0.1,
    )  # fmt: skip
    patch = clipmend.fit(encoder, data, config)
    assert torch.isfinite(torch.tensor(patch.metrics["validation"]["images/choice"]))
    before = [p.clone() for p in encoder._modules_list.parameters()]
    items = choice_items(data)
    vectors = encoder.encode_images(data.images)
    embeddings = {str(k): vector for k, vector in enumerate(vectors)}
    plain = evaluate_choice(encoder, items, image_embeddings=embeddings).accuracy
    mended = evaluate_choice(patch.apply(encoder), items, image_embeddings=embeddings).accuracy
    assert mended > plain, "training questions are better answered than before"
    assert all(torch.equal(a, b) for a, b in zip(before, encoder._modules_list.parameters(), strict=True))


def test_every_evaluation_runs_on_a_folder(coco_folder: Path, tmp_path: Path) -> None:
    negate(read(coco_folder), tmp_path / "all", seed=1, limit=40)
    results = evaluate(RandomDualEncoder(), tmp_path / "all", samples=20)
    assert set(results.results) == {"choice", "retrieval", "negated_retrieval", "exclusion", "presence"}
    assert len(read_choice(tmp_path / "all" / "choice.csv")) == results["choice"].measures()["acc"].count


def test_the_command_line_says_what_is_wrong(tmp_path: Path, voc_folder: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    run = CliRunner()
    done = run.invoke(app, ["data", "negate", str(voc_folder), "-o", str(tmp_path / "full")])
    assert isinstance(done.exception, FileExistsError)
    done = run.invoke(app, ["data", "negate", str(voc_folder), "-o", str(tmp_path / "n"), "--reserve", "gnu"])
    assert "nothing is called gnu" in str(done.exception)
    done = run.invoke(app, ["data", "negate", str(voc_folder), "-o", str(tmp_path / "n"), "--split", "val"])
    assert "no such split; there are trainval" in str(done.exception)
    assert not (tmp_path / "n").exists()
    assert "Example" in run.invoke(app, ["data", "negate", "--help"]).output


def test_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    root = tmp_path / os.fsdecode(b"data\xff")
    try:
        root.mkdir()
    except OSError:  # a file system of Unicode names alone
        pytest.skip("the file system takes Unicode names alone")
    coco(root)
    with pytest.raises(ValueError, match=r"data\\xff.* has a name that is no text"):
        negate(read(root, reader="coco"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert negate(read(root, reader="coco"), tmp_path / "out", copy_images=True).rows["images"] > 0
