"""The whole measurement, with a tiny generator: what is drawn once is not drawn again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from clipmend.generation.prior import LinearPrior
from clipmend.generation.prompts import FORMS
from clipmend.generation.sampling import SceneGenerator
from helpers import RandomDualEncoder

pytest.importorskip("diffusers")

from clipmend.generation.decoder import DecoderConfig, SceneDecoder  # needs what was just looked for
from clipmend.generation.experiment import ExperimentConfig, run_experiment, table
from clipmend.generation.presence import PresenceJudge, PresenceNet


def test_it_runs_goes_on_and_compares_each_way_with_the_plain_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    prior = LinearPrior(16, 16)
    prior.weight.copy_(torch.randn(16, 16))
    decoder = SceneDecoder(DecoderConfig(embed_dim=16, components=4, widths=(16, 16), blocks=1, embedding=16, refiner=0))
    torch.nn.init.normal_(decoder.last.weight)
    generator, encoder = SceneGenerator(decoder, prior), RandomDualEncoder()
    judge = PresenceJudge(PresenceNet(8))
    config = ExperimentConfig(prompts=4, seeds=2, steps=1, threshold=0.02)
    measured = run_experiment(generator, encoder, encoder, judge, tmp_path, config)
    saved = json.loads((tmp_path / "scores.json").read_text())
    assert set(saved["scores"]) == set(FORMS)
    assert set(saved["scores"]["affirmative"]) == {"plain", "mended", "image embedding"}
    assert set(saved["scores"]["hybrid"]) == set(config.methods)
    # The "mended" encoder is the plain one here, and the noise is the same: so are the images.
    same = saved["scores"]["hybrid"]["mended"]["against_plain"]["score"]
    assert same["difference"] == 0
    assert np.array_equal(measured.scores["hybrid"]["mended"].hits, measured.scores["hybrid"]["plain"].hits)
    assert measured.scores["hybrid"]["plain"].n == 8
    assert np.isfinite(measured.distances["plain"]["frechet"])
    assert (tmp_path / "table.md").read_text() == table(measured)
    assert all((tmp_path / f"{form}.png").exists() for form in FORMS)

    def never(*args: object, **options: object) -> None:
        raise AssertionError("drawn again")

    monkeypatch.setattr(SceneGenerator, "sample", never)
    again = run_experiment(generator, encoder, encoder, judge, tmp_path, config)
    assert again.to_dict() == measured.to_dict()
    with pytest.raises(ValueError, match="unknown method"):
        run_experiment(generator, encoder, encoder, judge, tmp_path, ExperimentConfig(methods=("magic",)))
