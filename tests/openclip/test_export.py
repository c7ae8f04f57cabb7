"""open_clip's text towers as ONNX graphs: the mended encoder's numbers, and a tokenizer beside them that makes the same ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.openclip.test_open_clip import TEXTS, build, transform
from torch.nn import functional as F
from torch.testing import assert_close

import clipmend
from markdown_blocks import read_blocks
from negation.attaching import patch_for

open_clip = pytest.importorskip("open_clip", reason="needs open_clip and torchvision")
pytest.importorskip("onnxscript", reason="needs the extra onnx")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

pytestmark = [pytest.mark.open_clip, pytest.mark.filterwarnings("ignore::clipmend.backbones.base.LongTextsWarning")]

NEAR = {"atol": 1e-4, "rtol": 0.0}


def embed_of(folder: Path) -> Any:
    """The function of the folder's own page, run as it stands but for where it is."""
    code = "\n".join(block.code for block in read_blocks(folder / "README.md") if block.language == "python")
    namespace: dict[str, Any] = {"__name__": "__page__"}
    exec(compile(code.replace('Path(".")', f"Path({str(folder)!r})"), "README.md", "exec"), namespace)
    return namespace["embed"]


@pytest.mark.parametrize("variant", ["clip", "clip-quickgelu", "custom-first", "custom-last", "siglip"])
def test_the_graph_gives_the_mended_embeddings(variant: str, tmp_path: Path) -> None:
    """From texts, through the folder's own tokenizer and code, at batches of one and of many.

    One variant for each kind of attention, activation and pooling: tracing takes most of a minute each.
    """
    encoder = clipmend.load(build(variant), preprocess=transform())
    patch = patch_for(encoder, use_scn=variant == "clip")  # its graphs read no tower, so that one is enough
    report = patch.export_onnx(encoder, tmp_path / "onnx")
    assert report.text_embeds < 1e-4
    assert (report.scores is not None) == (variant == "clip")
    assert (report.scores or 0) < 1e-4
    mended, embed = patch.apply(encoder, gate=False), embed_of(report.folder)
    texts = [text for text in TEXTS if text.strip()]
    expected = mended.encode_texts(texts)
    assert (F.cosine_similarity(expected, encoder.encode_texts(texts)) < 0.999).any(), "the correction must be seen"
    assert_close(torch.from_numpy(embed(texts)), expected, **NEAR)
    assert_close(torch.from_numpy(embed(texts[:1])), expected[:1], **NEAR)
