"""RN50 of open_clip, whose texts are half as wide as the joint space: a small one, and the real size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import clipmend
from backbones.journey import travel

open_clip = pytest.importorskip("open_clip", reason="needs open_clip and torchvision")

pytestmark = pytest.mark.open_clip


def test_small_resnet(tmp_path: Path) -> None:
    config = {
        "embed_dim": 64,
        "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 12},
    }
    (tmp_path / "mend-small-rn50.json").write_text(json.dumps(config))
    open_clip.add_model_config(tmp_path)
    path = tmp_path / "w.pt"
    torch.manual_seed(0)
    torch.save(open_clip.create_model("mend-small-rn50").state_dict(), path)
    name = f"open_clip:mend-small-rn50::{path}"
    encoder = clipmend.load(name, device="cpu")
    assert (encoder.text_width, encoder.embed_dim) == (32, 64)
    travel(encoder, lambda: clipmend.load(name, device="cpu"), tmp_path, size=64)


@pytest.mark.slow
def test_full_size_resnet(tmp_path: Path) -> None:
    path = tmp_path / "rn50.pt"
    torch.manual_seed(0)
    torch.save({"state_dict": open_clip.create_model("RN50").state_dict(), "epoch": 1}, path)
    name = f"open_clip:RN50-quickgelu::{path}"
    try:
        encoder = clipmend.load(name, device="cpu")
        assert (encoder.text_width, encoder.embed_dim, encoder.num_text_layers) == (512, 1024, 12)
        patch = travel(
            encoder,
            lambda: clipmend.load(name, device="cpu"),
            tmp_path,
            size=224,
            count=8,
            peak=8,
            anchor=6,
            scn_layers=(8, 12),
            hidden=1024,
            heads=8,
            context=128,
        )
        assert (patch.config.text_width, patch.config.embed_dim) == (512, 1024)
    finally:
        path.unlink(missing_ok=True)


def test_its_row_of_the_table() -> None:
    import backbone_table

    page = Path(__file__).parents[2] / "docs" / "backbones.md"
    assert backbone_table.resnet().markdown() in page.read_text(encoding="utf-8").splitlines()
