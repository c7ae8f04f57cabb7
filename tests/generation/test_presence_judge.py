"""The judge of drawn scenes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from clipmend.data.scenes import KINDS, Scene, SceneObject, make_scenes, render, scene_facts
from clipmend.evaluation.judged import Judge
from clipmend.generation.presence import (
    JudgeConfig,
    PresenceJudge,
    PresenceNet,
    damaged,
    judge_loss,
    load_presence_judge,
    measure_judge,
    targets,
    train_judge,
)
from clipmend.generation.prompts import THINGS

TINY = JudgeConfig(scenes=6, steps=10, batch_size=4, width=8)


def test_cells_say_what_is_drawn_there() -> None:
    scene = Scene(
        "beach",
        (SceneObject("cat", "red", "large", (0.0, 0.0, 0.5, 0.5)), SceneObject("cup", "blue", "small", (0.75, 0.75, 0.95, 0.95))),
    )
    kinds, colours, places = targets([scene])
    cat, cup = kinds[0, KINDS.index("cat")], kinds[0, KINDS.index("cup")]
    assert cat[4, 4] == 1
    assert cat[0, 0] == -1  # at the edge of its box
    assert (cat[9:] == 0).all()
    assert cup[13, 13] == 1
    assert (kinds[0] == 1).any((1, 2)).sum() == 2
    assert colours[0, 4, 4] != colours[0, 13, 13]
    assert colours[0, 0, 15] == -1
    assert places.tolist() == [0]


def test_a_few_scenes_are_learned_by_heart() -> None:
    scenes = make_scenes(4, 3)
    pixels = torch.from_numpy(np.stack([np.asarray(render(scene, 64)) for scene in scenes]))
    torch.manual_seed(0)
    net = PresenceNet(16)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    batch, wanted = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1, targets(scenes)
    losses = []
    for _ in range(120):
        loss = judge_loss(net, batch, *wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 5
    accuracy = measure_judge(PresenceJudge(net), pixels, [scene_facts(scene) for scene in scenes])
    assert accuracy.recall > 0.9
    assert accuracy.specificity > 0.95
    assert accuracy.places == 1.0


def test_it_is_a_judge_and_says_what_it_cannot_tell(tmp_path: Path) -> None:
    judge = PresenceJudge(PresenceNet(8))
    assert isinstance(judge, Judge)
    render(make_scenes(1, 0)[0], 96).save(tmp_path / "a b.png")
    said = judge.judge(tmp_path / "a b.png", ["cat", "red cat", "at beach", "zebra", "plaid cat"])
    assert all(0 <= value <= 1 for value in said[:3])
    assert np.isnan(said[3:]).all()
    assert said[1] <= said[0]  # a red cat is a cat
    assert judge.probabilities([], THINGS).shape == (0, len(THINGS))


def test_stopped_it_goes_on_to_equal_weights_and_is_read_back(tmp_path: Path) -> None:
    config = replace(TINY, steps=6)
    train_judge(tmp_path / "parts", config, stop_after=2)
    with pytest.raises(ValueError, match="noise"):
        train_judge(tmp_path / "parts", replace(config, noise=0.5))
    resumed = train_judge(tmp_path / "parts", config, stop_after=5)
    whole = train_judge(tmp_path / "whole", config, stop_after=5)
    for one, two in zip(whole.net.parameters(), resumed.net.parameters(), strict=True):
        assert torch.equal(one, two)
    whole.save(tmp_path / "saved")
    loaded = load_presence_judge(tmp_path / "saved")
    pixels = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    assert np.allclose(loaded.probabilities(pixels), whole.probabilities(pixels), atol=5e-3)
    with pytest.raises(OSError, match="no trained judge"):
        load_presence_judge(tmp_path)


def test_half_of_the_images_stay_as_they_are() -> None:
    pixels = torch.rand(200, 3, 16, 16) * 2 - 1
    worse = damaged(pixels, TINY, torch.Generator().manual_seed(0))
    same = (worse == pixels).flatten(1).all(1).float().mean()
    assert 0.35 < float(same) < 0.65
    assert worse.abs().max() <= 1
