"""NegBench in miniature: every published file name, with the published columns and quirks, about drawn scenes."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clipmend.data.scenes import make_scenes, render
from clipmend.data.scenes.draw import Scene
from clipmend.data.scenes.world import KINDS, with_article
from clipmend.negation.config import PeakPatchConfig
from clipmend.negation.patch import PeakPatch
from helpers import RandomDualEncoder

CHOICE = ("correct_answer", "caption_0", "caption_1", "caption_2", "caption_3", "correct_answer_template", "image_path")
RETRIEVAL = ("positive_objects", "negative_objects", "filepath", "image_id", "captions")


def encoder(seed: int = 0, name: str = "random") -> RandomDualEncoder:
    return RandomDualEncoder(context_length=60, layers=4, seed=seed, name=name)


def patch_of(model: RandomDualEncoder, folder: Path) -> Path:
    """A patch with large corrections, on disk."""
    torch.manual_seed(1)
    patch = PeakPatch.untrained(model, PeakPatchConfig(hidden=16, peak=3, anchor=2, scn_layers=(2, 4), context=8))
    nn.init.normal_(patch.ecn.mlp[-1].weight, std=0.3)
    return patch.save_pretrained(folder)


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def things(scene: Scene) -> tuple[list[str], str]:
    """Two kinds that are there (one, twice, where it is alone), and one that is not."""
    there = list(scene.kinds)[:2]
    return (there * 2)[:2], next(kind for kind in KINDS if kind not in scene.kinds)


def choice_rows(scenes: Sequence[Scene], paths: Sequence[str]) -> list[list[Any]]:
    """The right option at 0, as published; the three templates take turns."""
    rows = []
    for turn, (scene, path) in enumerate(zip(scenes, paths, strict=True)):
        (a, b), n = things(scene)
        right = (
            f"This image features {with_article(a)} and {with_article(b)}",
            f"This image does not feature {with_article(n)}",
            f"This image features {with_article(b)}, but not {with_article(n)}",
        )[turn % 3]
        wrong = [f"This image features {with_article(n)}, but not {with_article(b)}", f"This image features {with_article(n)}"]
        template = ("positive", "negative", "hybrid")[turn % 3]
        rows.append([0, right, *wrong, f"This image does not feature {with_article(a)}", template, path])
    return rows


def retrieval_rows(scenes: Sequence[Scene], paths: Sequence[str], negated: bool) -> list[list[Any]]:
    rows = []
    for number, (scene, path) in enumerate(zip(scenes, paths, strict=True)):
        (a, b), n = things(scene)
        denied = f", and no {n} is in it" if negated else ""
        captions = [f"A picture of {with_article(a)} and {with_article(b)}{denied}.", f"There is {with_article(b)}{denied}"]
        rows.append([repr([a, b]), repr([n]), path, number, repr(captions)])
    return rows


def negbench(folder: Path, count: int = 9, videos: bool = False) -> Path:
    """``images/*.csv`` and ``pictures/*.png``; the tables name the folders of another machine."""
    scenes = make_scenes(count, 41, "test")
    pictures = folder / "pictures"
    pictures.mkdir(parents=True)
    names = []
    for number, scene in enumerate(scenes):
        render(scene, 32).save(pictures / f"{number:06d}.png")
        names.append(f"data/elsewhere/val2017/{number:06d}.png")
    tables = folder / "images"
    for name in ("COCO_val_mcq_llama3.1_rephrased", "VOC2007_mcq_llama3.1_rephrased", "synthetic_mcq_llama3.1_rephrased"):
        write_csv(tables / f"{name}.csv", CHOICE, choice_rows(scenes, names))
    for name in ("COCO_val_retrieval", "synthetic_retrieval_v1", "synthetic_retrieval_v2"):
        write_csv(tables / f"{name}.csv", RETRIEVAL, retrieval_rows(scenes, names, False))
    negated = "COCO_val_negated_retrieval_llama3.1_rephrased_affneg_true"
    write_csv(tables / f"{negated}.csv", RETRIEVAL, retrieval_rows(scenes, names, True))
    binary = [
        [path, f"This image shows no {things(s)[1]}", f"This image shows no {things(s)[0][0]}", 0]
        for s, path in zip(scenes, names, strict=True)
    ]
    for name in ("chexpert_binary_mcq", "chexpert_binary_mcq_control"):
        write_csv(tables / f"{name}.csv", ("image_path", "caption_0", "caption_1", "correct_answer"), binary)
    if videos:
        clips = films(folder / "clips", scenes)
        write_csv(folder / "videos" / "msr_vtt_mcq_rephrased_llama.csv", CHOICE, choice_rows(scenes, clips))
        write_csv(folder / "videos" / "msr_vtt_retrieval.csv", RETRIEVAL, retrieval_rows(scenes, clips, False))
        write_csv(folder / "videos" / "msr_vtt_retrieval_rephrased_llama.csv", RETRIEVAL, retrieval_rows(scenes, clips, True))
    present = [[f"{number:06d}.png", ";".join(scene.kinds)] for number, scene in enumerate(scenes)]
    write_csv(folder / "presence.csv", ("image", "present"), present)
    return folder


def films(folder: Path, scenes: Sequence[Scene]) -> list[str]:
    """A clip of each scene, in MPEG-4."""
    av = pytest.importorskip("av")
    folder.mkdir(parents=True)
    names = []
    for number, scene in enumerate(scenes):
        name = f"video{number}.mp4"
        with av.open(str(folder / name), "w") as container:
            stream = container.add_stream("mpeg4", rate=10)
            stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
            for _ in range(5):
                for packet in stream.encode(av.VideoFrame.from_image(render(scene, 32).convert("RGB"))):
                    container.mux(packet)
            for packet in stream.encode():
                container.mux(packet)
        names.append(name)
    return names
