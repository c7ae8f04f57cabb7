import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clipmend.data.records import TRUE
from clipmend.data.scenes.tables import write_scenes
from clipmend.evaluation import (
    compare,
    evaluate,
    evaluate_rivals,
    oracle_recall,
    read_folder,
    read_pairs,
    side_by_side,
)
from clipmend.evaluation.suite import embed_all
from helpers import RandomDualEncoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scenes") / "drawn"
    write_scenes(path, count=12, size=32, seed=901, split="test")
    return path


def test_everything_of_a_drawn_folder(folder: Path, tmp_path: Path) -> None:
    encoder = RandomDualEncoder(context_length=60)
    found = evaluate(encoder, folder, samples=50)
    assert list(found.results) == ["choice", "retrieval", "negated_retrieval", "exclusion", "presence"]
    assert encoder.image_passes == 1  # twelve images, one batch, for five tasks
    data = read_folder(folder)
    assert data.retrieval is not None
    truth = data.truth(data.retrieval)
    assert truth is not None
    assert (truth[data.retrieval.image_of, np.arange(len(data.retrieval.captions))] == TRUE).all()
    ceiling = found["retrieval"].metrics["image_retrieval_oracle_recall@5"]
    assert ceiling == pytest.approx(oracle_recall(truth, 5, data.retrieval.image_of))
    assert found["retrieval"].metrics["image_retrieval_recall@5"] < ceiling
    assert "acc_negative/reserved_wording" in found["choice"].metrics
    assert all(table.row_count for table in found.tables())
    content = json.loads(found.save(tmp_path / "all.json").read_text())
    assert content["choice"]["dataset"] == "drawn/choice"
    same = found.compare(evaluate(encoder, data, samples=50), samples=20)
    assert all(d.difference == 0 or np.isnan(d.difference) for c in same.values() for d in c.differences.values())


def test_some_tasks_and_what_is_missing(folder: Path, tmp_path: Path) -> None:
    encoder = RandomDualEncoder(context_length=60)
    vectors = embed_all(encoder, read_folder(folder))
    found = evaluate(encoder, folder, tasks=["exclusion"], image_embeddings=vectors, samples=20, over="kinds")
    assert list(found.results) == ["exclusion"]
    assert "choice" not in found
    with pytest.raises(ValueError, match="unknown task 'captioning'"):
        evaluate(encoder, folder, tasks=["captioning"])
    (tmp_path / "choice.csv").write_bytes((folder / "choice.csv").read_bytes())
    with pytest.raises(ValueError, match="no table for retrieval"):
        evaluate(encoder, tmp_path, tasks=["retrieval"])
    with pytest.raises(FileNotFoundError, match="clipmend scenes"):
        evaluate(encoder, tmp_path / "nowhere")
    with pytest.raises(ValueError, match="different items"):
        side_by_side({"a": evaluate(encoder, folder, tasks=["choice"])["choice"], "b": found["exclusion"]})
    with pytest.raises(ValueError, match="no results"):
        side_by_side({})


def test_rivals_leave_plain_captions_alone(folder: Path) -> None:
    encoder = RandomDualEncoder(context_length=60)
    backbone = evaluate(encoder, folder, samples=20)
    pairs = read_pairs(folder / "pairs.csv")
    found = evaluate_rivals(encoder, folder, folder, pairs, tasks=["choice", "retrieval"], samples=20)
    assert len(found) == 4
    for name, evaluation in found.items():
        assert evaluation["choice"].pretrained.startswith("weight ")
        assert evaluation["choice"].model == f"random + {name}"
        plain = compare(backbone["retrieval"], evaluation["retrieval"], samples=5)
        assert all(d.difference == 0 for d in plain.differences.values())
    assert side_by_side({"backbone": backbone["choice"], **{n: e["choice"] for n, e in found.items()}}).row_count > 4
    assert "negation direction" not in evaluate_rivals(encoder, folder, folder, tasks=["choice"], samples=20)
    with pytest.raises(ValueError, match="no pair of kind 'colour'"):
        read_pairs(folder / "pairs.csv", "colour")


def test_the_package_is_light_to_import() -> None:
    code = (
        "import sys, clipmend.evaluation, clipmend.cli.evaluate; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
