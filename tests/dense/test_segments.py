"""Parts of images with their sentences: segmenters, matching, the file and its way into training, kills, the command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from clipmend.backbones.base import Fingerprint
from clipmend.cli.app import app
from clipmend.data.dense import read_dense
from clipmend.data.images import ImageError
from clipmend.dense import finetune
from clipmend.dense.pairs import open_pairs
from clipmend.dense.segments import grid_boxes, make_segmenter, mask_boxes, match_sentences, write_segments
from dense import small_training as small


class Colours:
    """Embeds an image as its mean colour, a text as the colour that it names; nothing else is asked of a DualEncoder here."""

    logit_scale = 10.0
    fingerprint = Fingerprint("a", "b", "c")

    def __init__(self) -> None:
        self.seen = 0

    def encode_images(self, images: list[Image.Image], *, batch_size: int = 32) -> Tensor:
        self.seen += len(images)
        found = torch.tensor(np.stack([np.asarray(image, np.float64).mean((0, 1)) for image in images])).float() + 1e-6
        return found / found.norm(dim=1, keepdim=True)

    def encode_texts(self, texts: list[str], *, on_long: str = "warn") -> Tensor:
        rows = [[float(word in text.lower()) for word in ("red", "green", "blue")] for text in texts]
        return torch.tensor(rows) / torch.tensor(rows).norm(dim=1, keepdim=True).clamp_min(1e-6)


def picture(width: int = 60, height: int = 60) -> Image.Image:
    """Green, with a red upper left and a blue lower right."""
    image = Image.new("RGB", (width, height), (0, 200, 0))
    image.paste((200, 0, 0), (0, 0, width // 3, height // 3))
    image.paste((0, 0, 200), (2 * width // 3, 2 * height // 3, width, height))
    return image


CAPTION = "A red thing. The blue one is below it! Grass, green all over"


def photos(folder: Path, count: int = 4) -> Path:
    folder.mkdir()
    for k in range(count):
        picture(60 + k).save(folder / f"photo {k}.png")
        (folder / f"photo {k}.txt").write_text(f"{CAPTION}.  A red number {k}.", encoding="utf-8")
    return folder


# ---- boxes --------------------------------------------------------------------------------------------------------------------


def test_a_grid_covers_the_image_once() -> None:
    for size in ((60, 40), (7, 5), (2, 9), (1, 1)):
        covered = np.zeros(size[::-1], int)
        for left, top, right, bottom in grid_boxes(size, 3):
            covered[top:bottom, left:right] += 1
        assert (covered == 1).all()
    assert grid_boxes((60, 30), 1) == [(0, 0, 60, 30)]


def test_boxes_around_masks() -> None:
    masks = np.zeros((5, 20, 30), bool)
    masks[0, 0:5, 0:6] = True  # at the border
    masks[1, 15:20, 24:30] = True
    masks[2] = True  # too much
    masks[3, 3, 3] = True  # one pixel: too little
    masks[4, 0:5, 0:6] = True  # a second time
    assert mask_boxes(masks) == [(0, 0, 6, 5), (24, 15, 30, 20)]
    assert mask_boxes(torch.from_numpy(masks), least=0.0, most=1.0) == [
        (0, 0, 6, 5),
        (24, 15, 30, 20),
        (0, 0, 30, 20),
        (3, 3, 4, 4),
    ]
    assert mask_boxes([]) == []


@pytest.mark.parametrize("by", ["skimage", "slic"])
@pytest.mark.parametrize("size", [64, 30])
def test_segments_of_scikit_image(by: str, size: int) -> None:
    pytest.importorskip("skimage", reason="needs scikit-image")
    boxes = make_segmenter(by, size=size)(picture())
    for wanted in ((0, 0, 20, 20), (40, 40, 60, 60)):
        assert min(max(abs(a - b) for a, b in zip(box, wanted, strict=True)) for box in boxes) <= 4, (wanted, boxes)
    assert all(0 <= left < right <= 60 and 0 <= top < bottom <= 60 for left, top, right, bottom in boxes)
    assert make_segmenter(by)(Image.new("RGB", (1, 1))) == []  # all of it is no part


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"by": " "}, "by is empty"), ({"by": "gird"}, "by is 'gird'; say grid"),
        ({"by": "slic", "scale": 3}, "slic take no scale"),
        ({"cells": 0}, "cells is 0"), ({"least": 0.9}, "least is 0.9 and most 0.8"),
        ({"scale": 3}, "the grid takes no scale"),
    ],
)  # fmt: skip
def test_segmenters_that_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_segmenter(**values)


def test_a_model_gives_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the pipeline of transformers gives, and what it is called with."""
    import transformers

    calls: list[Any] = []

    def pipeline(task: str, **values: Any) -> Any:
        calls.append((task, values))

        def generate(image: Image.Image, **options: Any) -> dict[str, Any]:
            calls.append(options)
            mask = torch.zeros(image.height, image.width, dtype=torch.bool)
            mask[2:12, 5:25] = True
            return {"masks": [mask], "scores": torch.ones(1)}

        return generate

    monkeypatch.setattr(transformers, "pipeline", pipeline)
    assert make_segmenter("some/sam", device="cpu", points_per_batch=8)(Image.new("RGB", (40, 30))) == [(5, 2, 25, 12)]
    assert calls == [("mask-generation", {"model": "some/sam", "device": "cpu"}), {"points_per_batch": 8}]

    def absent(task: str, **values: Any) -> Any:
        raise ImportError("SamImageProcessor requires torchvision.\nMore")

    monkeypatch.setattr(transformers, "pipeline", absent)
    with pytest.raises(ImportError, match=r"SamImageProcessor requires torchvision\. Install it with: pip install torchvision"):
        make_segmenter("some/sam")


@pytest.mark.open_clip  # the environment that has torchvision
def test_a_real_mask_generation_model_of_random_weights(tmp_path: Path) -> None:
    pytest.importorskip("torchvision", reason="SAM's preprocessing needs torchvision")
    from transformers import SamConfig, SamImageProcessor, SamModel, SamProcessor

    torch.manual_seed(0)
    vision = {
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 64, "patch_size": 16, "mlp_dim": 16,
        "output_channels": 8, "global_attn_indexes": [0], "window_size": 2, "num_pos_feats": 4,
    }  # fmt: skip
    prompt = {"hidden_size": 8, "image_size": 64, "patch_size": 16, "mask_input_channels": 4}
    decoder = {"hidden_size": 8, "mlp_dim": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "iou_head_hidden_dim": 8}
    model = SamModel(SamConfig(vision_config=vision, prompt_encoder_config=prompt, mask_decoder_config=decoder))
    sizes = {"size": {"longest_edge": 64}, "pad_size": {"height": 64, "width": 64}, "mask_size": {"longest_edge": 16}}
    model.save_pretrained(tmp_path)
    SamProcessor(SamImageProcessor(**sizes, mask_pad_size={"height": 16, "width": 16})).save_pretrained(tmp_path)
    segmenter = make_segmenter(str(tmp_path), device="cpu", most=1.0, least=0.0, pred_iou_thresh=-9.0, stability_score_thresh=-1.0)
    boxes = segmenter(picture(60, 40))
    assert boxes
    assert all(0 <= left < right <= 60 and 0 <= top < bottom <= 40 for left, top, right, bottom in boxes)


# ---- matching and the file ----------------------------------------------------------------------------------------------------


def test_sentences_go_to_the_crops_that_fit() -> None:
    boxes = grid_boxes((60, 60), 3)
    found = match_sentences(Colours(), picture(), boxes, ["a red thing", "blue", "green"])  # type: ignore[arg-type]
    assert [box for box, _ in found[:2]] == [(0, 0, 20, 20), (40, 40, 60, 60)]
    assert [score for _, score in found] == pytest.approx([10.0] * 3, abs=1e-4)


def test_the_file_is_goal_s_and_can_be_trained_on(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 8)
    steps: list[tuple[int, int]] = []
    encoder: Any = Colours()
    written = write_segments(str(folder), folder / "parts.json", encoder, advance=lambda *n: steps.append(n))
    assert (written.pairs, written.segments, written.resumed, written.notes) == (8, 32, 0, ())
    assert steps == [(k, 8) for k in range(1, 9)]
    assert not list(folder.glob("*.part"))
    entries = json.loads((folder / "parts.json").read_text())
    second = entries[1]
    assert second["original_filename"] == "photo 1.png"
    wanted = ["A red thing.", "The blue one is below it!", "Grass, green all over.", "A red number 1."]
    assert [part["caption"] for part in second["segment"]] == wanted
    assert second["segment"][0]["bbox_coordinates"] == {"x1": 0, "y1": 0, "x2": 20, "y2": 20, "width": 20, "height": 20}
    assert second["segment"][0]["filename"] == "photo 1.png#xywh=0,0,20,20"
    data = read_dense("goal", folder / "parts.json")
    assert data.segments is not None
    assert data.segments[1][0].box == (0, 0, 20, 20)
    assert not data.missing()
    pairs = open_pairs(f"goal:{folder / 'parts.json'}")
    settings = small.config("goal", {"parts": 2}, steps=1, batch_size=3, validation=0.25)
    assert finetune(small.clip_folder(tmp_path / "clip"), pairs, settings, device="cpu").steps == 1


def test_a_sentence_about_everything_keeps_the_whole_image(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    (folder / "photo 1.txt").write_text("Red green blue.", encoding="utf-8")
    encoder: Any = Colours()
    written = write_segments(str(folder), tmp_path / "elsewhere" / "a.json", encoder)
    assert written.whole == 1
    entry = json.loads(written.path.read_text())[1]
    assert entry["segment"][0]["bbox_coordinates"]["width"] == 61
    assert Path(entry["original_filename"]).is_absolute()  # the image is not below the file's folder
    assert entry["segment"][0]["filename"] == entry["original_filename"]
    assert write_segments(str(folder), tmp_path / "b.json", encoder, whole=False).whole == 0
    alone = write_segments(str(folder), tmp_path / "c.json", encoder, lambda image: [], whole=False)
    assert alone.whole == alone.segments  # an image of which no part is found


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 5)
    encoder: Any = Colours()
    wanted = write_segments(str(folder), tmp_path / "whole.json", encoder).path.read_bytes()

    def killed(done: int, of: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_segments(str(folder), tmp_path / "parts.json", encoder, advance=killed)
    part = tmp_path / "parts.json.part"
    assert not (tmp_path / "parts.json").exists()
    part.write_bytes(part.read_bytes()[:-20])  # a line that was not written to its end
    with pytest.raises(ValueError, match=r"parts\.json\.part is of other data, another encoder or other settings"):
        write_segments(str(folder), tmp_path / "parts.json", encoder, make_segmenter("grid", cells=2), name="other")
    again = Colours()
    done = write_segments(str(folder), tmp_path / "parts.json", again)  # type: ignore[arg-type]
    assert done.path.read_bytes() == wanted
    assert done.resumed == 2
    assert again.seen == 3 * 10  # nine cells and the whole of the three that were left
    with pytest.raises(FileExistsError, match="is there already"):
        write_segments(str(folder), tmp_path / "parts.json", encoder)


def test_images_that_cannot_be_used(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    (folder / "photo 2.png").write_bytes(b"\x89PNG not really")
    encoder: Any = Colours()
    with pytest.raises(ImageError, match=r"photo 2\.png.*--skip-broken"):
        write_segments(str(folder), tmp_path / "a.json", encoder)
    written = write_segments(str(folder), tmp_path / "b.json", encoder, skip_broken=True)
    assert written.pairs == 3
    assert len(written.notes) == 1
    assert "photo 2.png" in written.notes[0]
    with pytest.raises(ValueError, match="is no file of its own"):
        write_segments(small.pairs(4), tmp_path / "c.json", encoder)


def test_scores_are_numbers(tmp_path: Path) -> None:
    """A caption without a letter, or none of whose words the encoder knows, still gives a file that reads."""
    folder = photos(tmp_path / "photos")
    (folder / "photo 0.txt").write_text("!? \U0001f34a", encoding="utf-8")
    encoder: Any = Colours()
    written = write_segments(str(folder), tmp_path / "a.json", encoder)
    data = read_dense("goal", written.path)
    assert data.segments is not None
    assert all(math.isfinite(part.score) for parts in data.segments for part in parts)


# ---- the command --------------------------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    clip = small.clip_folder(tmp_path / "clip")
    out = folder / "parts.json"
    arguments = [
        "data",
        "segments",
        str(folder),
        "-o",
        str(out),
        "--by",
        "grid",
        "--cells",
        "2",
        "--match",
        clip,
        "--device",
        "cpu",
    ]
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "16 sentences of 4 captions matched" in done.output
    assert len(json.loads(out.read_text())) == 4
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, FileExistsError)
    wrong = CliRunner().invoke(app, [*arguments[:4], str(folder / "other.json"), *arguments[5:], "--set", "scale=3"])
    assert "the grid takes no scale" in str(wrong.exception)


def test_an_option_of_another_kind_is_named() -> None:
    pytest.importorskip("skimage")
    with pytest.raises(ValueError, match="segments by skimage: scale=wide"):
        make_segmenter("skimage", scale="wide")(picture())
