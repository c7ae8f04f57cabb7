"""Patches with direct paths, older configs and damaged sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from clipmend.negation import PeakPatch
from clipmend.negation.networks import EmbeddingCorrectionNetwork, ScoreCorrectionNetwork
from helpers import RandomDualEncoder
from negation.attaching import patch_for

TEXTS = [".", " ?", "\n-\t", "a", "no cat", "\U0001f999", "no " * 50, "a dog without a cat"]

pytestmark = pytest.mark.filterwarnings("ignore::clipmend.backbones.base.LongTextsWarning")


@pytest.fixture
def encoder() -> RandomDualEncoder:
    return RandomDualEncoder()


def edited(folder: Path, **fields: Any) -> Path:
    """A saved patch whose config says otherwise; ``None`` leaves a field out."""
    path = folder / "config.json"
    content = json.loads(path.read_text())
    for name, value in fields.items():
        content["config"].pop(name) if value is None else content["config"].update({name: value})
    path.write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("direct", [False, True])
def test_a_config_from_before_the_direct_paths(encoder: RandomDualEncoder, tmp_path: Path, direct: bool) -> None:
    patch = patch_for(encoder, use_direct=direct)
    expected = patch.apply(encoder).encode_texts(TEXTS)
    folder = edited(patch.save_pretrained(tmp_path / "p"), use_direct=None)
    if direct:  # weights and config contradict each other
        with pytest.raises(ValueError, match=r"does not fit its config\.json, in its ECN: it has no use for readout"):
            PeakPatch.from_pretrained(folder)
        return
    old = PeakPatch.from_pretrained(folder)
    assert not old.config.use_direct
    assert torch.equal(old.apply(encoder).encode_texts(TEXTS), expected)


@pytest.mark.parametrize("fields", [{"hidden": 10**9}, {"context": 10**10}, {"hidden": 2**63}, {"context": 2**80}])
def test_sizes_beyond_all_memory_are_refused_before_any_is_taken(
    encoder: RandomDualEncoder, tmp_path: Path, fields: dict[str, int]
) -> None:
    folder = edited(patch_for(encoder, use_scn=True).save_pretrained(tmp_path / "p"), **fields)
    with pytest.raises(ValueError, match=r"does not fit its config\.json|describes networks that cannot be made"):
        PeakPatch.from_pretrained(folder)


def test_networks_that_are_not_the_configs(encoder: RandomDualEncoder) -> None:
    patch = patch_for(encoder, use_direct=True, use_scn=True)
    about = {"backbone": "x", "fingerprint": patch.fingerprint}
    plain = EmbeddingCorrectionNetwork(24, 16, hidden=32, heads=4)
    with pytest.raises(ValueError, match=r"the ECN is not the one that the config describes: it lacks readout\.value"):
        PeakPatch(patch.config, plain, patch.scn, **about)
    with pytest.raises(ValueError, match=r"the SCN is not the one .* is \[16, 48\], not \[16, 32\]"):
        PeakPatch(patch.config, patch.ecn, ScoreCorrectionNetwork(16, 3, 8), **about)
    PeakPatch(patch.config, patch.ecn, patch.scn, **about)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("config", [{}, {"use_anchor": False}, {"use_pool": False}, {"eos_only": True}], ids=str)
def test_direct_paths_are_kept(encoder: RandomDualEncoder, tmp_path: Path, dtype: torch.dtype, config: dict[str, Any]) -> None:
    patch = patch_for(encoder, use_direct=True, use_scn=True, **config)
    again = PeakPatch.from_pretrained(patch.save_pretrained(tmp_path / "p", dtype))
    kept, own = again.apply(encoder), patch.apply(encoder)
    near = {torch.float32: 0.0, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert (kept.encode_texts(TEXTS) - own.encode_texts(TEXTS)).abs().max() <= near
    images = encoder.encode_images([])
    assert kept.score(images, TEXTS).shape == (0, len(TEXTS))


def test_texts_in_any_company(encoder: RandomDualEncoder) -> None:
    mended = patch_for(encoder, use_direct=True).apply(encoder)
    together = mended.encode_texts(TEXTS)
    assert together.isfinite().all()
    for size in (1, 3):
        assert (mended.encode_texts(TEXTS, batch_size=size) - together).abs().max() < 1e-6
    alone = torch.cat([mended.encode_texts([text]) for text in TEXTS])
    assert (alone - together).abs().max() < 1e-6
    assert mended.encode_texts([]).shape == (0, encoder.embed_dim)


def test_strength_gate_and_length(encoder: RandomDualEncoder) -> None:
    patch = patch_for(encoder, use_direct=True)
    plain, lengths = encoder.encode_texts(TEXTS, normalize=False), encoder.encode_texts(TEXTS, normalize=False).norm(dim=-1)
    assert torch.equal(patch.apply(encoder, 0.0).encode_texts(TEXTS, normalize=False), plain)
    gated = patch.apply(encoder, gate=True).encode_texts(TEXTS, normalize=False)
    changed = [not torch.equal(a, b) for a, b in zip(gated, plain, strict=True)]
    assert changed == [False, False, False, False, True, False, True, True]
    assert torch.allclose(gated.norm(dim=-1), lengths, atol=1e-5)


def test_a_correction_that_is_not_finite_is_named(encoder: RandomDualEncoder, tmp_path: Path) -> None:
    patch = patch_for(encoder, use_direct=True)
    with torch.no_grad():
        patch.ecn.readout.value[0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"the patch's correction of text 0 \('a'\) is not finite"):
        patch.apply(encoder).encode_texts(["a", "b"])
    with pytest.raises(ValueError, match=r"ecn\.readout\.value is not finite"):
        patch.save_pretrained(tmp_path / "p")
    assert not (tmp_path / "p").exists()
