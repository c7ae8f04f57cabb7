"""The saturation lens against autograd and three plain lines; the geometry of captions."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from torch.testing import assert_close

import clipmend
from clipmend.dense import finetune
from clipmend.dense.lens import caption_cosines, look, plot_lens, summarise
from clipmend.dense.progress import MetricsFile, read_metrics
from clipmend.dense.stats import caption_geometry
from dense import small_training as small


def features(rows: int = 6, alike: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    image = F.normalize(torch.randn(rows, 8, generator=generator), dim=-1)
    text = F.normalize(torch.randn(rows, 8, generator=generator) + alike * torch.randn(1, 8, generator=generator), dim=-1)
    return image, text


def test_losses_and_gradients_are_autograd_s() -> None:
    image, text = features()
    found = look(image, text, 7.0, gamma=0.5)
    slopes = []
    for gamma, name in ((0.0, "info_nce"), (0.5, "hard_negative")):
        v, t = image.clone().requires_grad_(), text.clone().requires_grad_()
        scores = 7.0 * (v @ t.T + gamma * (t @ t.T).detach().fill_diagonal_(0))
        # The margin belongs to the pair of captions, whichever way the scores are read.
        loss = (F.cross_entropy(scores, torch.arange(6)) + F.cross_entropy(scores.T, torch.arange(6))) / 2
        loss.backward()
        slopes.append(torch.cat([v.grad.reshape(-1), t.grad.reshape(-1)]))  # type: ignore[union-attr]
        assert found[name] == pytest.approx(loss.item(), rel=1e-5)
        assert found[f"{name}_gradient"] == pytest.approx(slopes[-1].norm().item(), rel=1e-4)
    assert found["gradient_cosine"] == pytest.approx(F.cosine_similarity(*slopes, dim=0).item(), abs=1e-4)
    assert found["saturated"] == found["zero_gradient"] == 0
    assert not image.requires_grad


def test_a_saturated_batch() -> None:
    rows = torch.eye(6)
    found = look(rows, rows, 1000.0)
    assert found["saturated"] == found["zero_gradient"] == 1
    assert math.isnan(found["gradient_cosine"])
    seen = summarise([found, look(*features(), 7.0)])
    assert seen["saturated"] == 0.5
    assert not math.isnan(seen["gradient_cosine"])
    assert seen["batches"] == 2
    assert summarise([]) == {}


def test_caption_cosines() -> None:
    _, text = features(4)
    cosines = text @ text.T
    off = [[float(cosines[i, j]) for j in range(4) if j != i] for i in range(4)]
    found = caption_cosines(text)
    assert found["caption_cosine"] == pytest.approx(sum(map(sum, off)) / 12, abs=1e-6)
    assert found["hardest_cosine"] == pytest.approx(sum(map(max, off)) / 4, abs=1e-6)
    again = torch.cat([text, text[:1]])
    same = caption_cosines(again, torch.tensor([0, 1, 2, 3, 0]))
    assert same["hardest_cosine"] < 1 - 1e-4 < caption_cosines(again)["hardest_cosine"] + 0.9
    assert math.isnan(caption_cosines(text[:1])["caption_cosine"])
    assert math.isnan(caption_cosines(text, torch.zeros(4))["hardest_cosine"])


def test_a_training_looks_every_n_steps_and_changes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs the extra train")
    model = small.clip_folder(tmp_path / "model")
    plain = finetune(model, small.pairs(), small.config("hn-clip", steps=5, choose="last", micro_batches=2), device="cpu")
    settings = small.config("hn-clip", steps=5, choose="last", micro_batches=2, lens_every=2)
    seen = finetune(model, small.pairs(), settings, directory=tmp_path / "work", device="cpu")
    for name, value in small.weights(plain.model).items():
        assert torch.equal(value, small.weights(seen.model)[name])
    metrics = read_metrics(tmp_path / "work" / "metrics.jsonl")
    lines = [line for line in metrics if "lens/info_nce" in line]
    assert [line["step"] for line in lines] == [1, 3, 5]
    assert all(line["lens/hard_negative"] == pytest.approx(line["global"], rel=1e-5) for line in lines)
    assert all(line["lens/hard_negative"] > line["lens/info_nce"] for line in lines)
    assert seen.lens["batches"] == 3
    path = plot_lens(metrics, tmp_path / "lens.png", "a title")
    with Image.open(path) as picture:
        assert picture.size[0] > 1000
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 20
    assert not list(tmp_path.glob(".lens*"))
    with pytest.raises(ValueError, match="saw no batch"):
        plot_lens([{"step": 1, "loss": 2.0}], tmp_path / "none.png")


def test_the_file_of_metrics_goes_on_where_the_checkpoint_is(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path, 0)
    for step in range(1, 5):
        file.write({"step": step})
    with (tmp_path / "metrics.jsonl").open("a") as cut:
        cut.write('{"step": 5, "lo')
    assert [entry["step"] for entry in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]
    MetricsFile(tmp_path, 3).write({"step": 4, "again": True})
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()][2:] == [
        {"step": 3},
        {"step": 4, "again": True},
    ]
    MetricsFile(tmp_path, 0)
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_the_geometry_of_captions(tmp_path: Path) -> None:
    encoder = clipmend.load(small.clip_folder(tmp_path / "model"), device="cpu")
    captions = [f"{first} dog by {second} cat" for first in small.COLOURS for second in small.COLOURS[:3]]
    found = caption_geometry(encoder, [*captions, captions[0]], batch_size=64)
    every = encoder.encode_texts(captions)
    cosines = (every @ every.T).fill_diagonal_(-1)
    assert found.repeated == 2
    assert found.captions == 37
    assert found.truncated == 0
    assert found.hardest == pytest.approx(cosines.amax(1).mean().item(), abs=0.02)
    assert_close(found.mean, cosines[~torch.eye(36, dtype=torch.bool)].mean().item(), atol=0.02, rtol=0)
    assert found.hardest_quantiles[0] <= found.hardest_quantiles[1] <= found.hardest_quantiles[2] < 1
    assert caption_geometry(encoder, captions, batch_size=4, limit=10).captions == 10
    for wrong in (["a dog"], ["a dog"] * 3, []):
        with pytest.raises(ValueError, match="no two different captions"):
            caption_geometry(encoder, wrong)
