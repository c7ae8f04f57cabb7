"""Videos: frames, broken files, embeddings, and NegBench's MSR-VTT tables."""

from __future__ import annotations

import builtins
import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from typer.testing import CliRunner

from clipmend.cli.app import app
from clipmend.data.scenes import make_scenes, render
from clipmend.data.video import VideoError, encode_videos, is_video, sample_frames
from clipmend.evaluation import evaluate_choice, evaluate_retrieval, read_choice, read_retrieval
from helpers import RandomDualEncoder

av = pytest.importorskip("av")


def film(path: Path, frames: int = 20, size: int = 64) -> Path:
    """A clip whose frame k is grey level 10 k, in MPEG-4 (every build of FFmpeg writes it)."""
    return written(path, [Image.new("RGB", (size, size), (10 * k,) * 3) for k in range(frames)])


def written(path: Path, pictures: list[Image.Image]) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = *pictures[0].size, "yuv420p"
        stream.gop_size = 4
        for picture in pictures:
            for packet in stream.encode(av.VideoFrame.from_image(picture)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def level(frame: Image.Image) -> float:
    return float(np.asarray(frame.convert("L"), np.float32).mean())


@pytest.mark.parametrize(("count", "expected"), [(1, [10]), (2, [5, 15]), (4, [2, 7, 12, 17]), (20, range(20)), (99, range(20))])
@pytest.mark.parametrize("ending", ["mp4", "mkv"])
def test_frames_come_from_the_middles_of_equal_parts(tmp_path: Path, ending: str, count: int, expected: list[int]) -> None:
    frames = sample_frames(film(tmp_path / f"clip one é.{ending}"), count)
    assert [round(level(f) / 10) for f in frames] == list(expected)
    assert frames[0].mode == "RGB"


def test_broken_videos_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = film(tmp_path / "whole.mkv", 60)
    cases: dict[str, tuple[bytes | None, str]] = {
        "gone.mp4": (None, "no such file"),
        "zero.mp4": (b"", r"the file is empty \(0 bytes\)"),
        "text.mp4": (b"not a video at all" * 50, "cannot be read as a video"),
        "head.mp4": (film(tmp_path / "whole.mp4").read_bytes()[:300], "cannot be read as a video|holds no frames"),
    }
    for name, (content, message) in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(VideoError, match=f"{name}: ({message})"):
            sample_frames(tmp_path / name)
    content = whole.read_bytes()
    (tmp_path / "half.mkv").write_bytes(content[: len(content) // 2])
    with pytest.raises(VideoError, match=r"half\.mkv: is cut off: it ends at \d\.\d of 6\.0 seconds"):
        sample_frames(tmp_path / "half.mkv")
    with av.open(str(tmp_path / "sound.mkv"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        for packet in [*stream.encode(frame), *stream.encode()]:
            container.mux(packet)
    with pytest.raises(VideoError, match=r"sound\.mkv: holds no video stream"):
        sample_frames(tmp_path / "sound.mkv")
    with pytest.raises(ValueError, match="at least one frame of a video is needed, not 0"):
        sample_frames(whole, 0)
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "av":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r'pip install "clipmend\[video\]"'):
        sample_frames(whole)


def test_a_video_is_the_mean_of_its_frames(tmp_path: Path) -> None:
    encoder = RandomDualEncoder()
    scenes = make_scenes(6, 3)
    paths = [written(tmp_path / f"{k}.mp4", [render(s, 64).convert("RGB") for s in scenes[k : k + 3]]) for k in range(2)]
    vectors = encode_videos(encoder, paths, frames=3)
    expected = F.normalize(torch.stack([encoder.encode_images(sample_frames(p, 3)).mean(0) for p in paths]), dim=-1)
    assert torch.allclose(vectors, expected, atol=1e-6)
    assert torch.allclose(vectors.norm(dim=-1), torch.ones(2))
    assert encode_videos(encoder, []).shape == (0, encoder.embed_dim)
    assert is_video("a/B.MP4")
    assert not is_video("a.png")


@pytest.mark.parametrize("column", ["image_path", "video_path"])
def test_negbench_tables_of_videos(tmp_path: Path, column: str) -> None:
    folder = tmp_path / "videos"
    folder.mkdir()
    scenes = make_scenes(9, 4)
    names = [f"video{7010 + k}.mp4" for k in range(3)]
    for k, name in enumerate(names):
        written(folder / name, [render(s, 48).convert("RGB") for s in scenes[3 * k : 3 * k + 3]])
    mcq, retrieval = tmp_path / "msr_vtt_mcq_rephrased_llama.csv", tmp_path / "msr_vtt_retrieval.csv"
    with mcq.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow([column, "correct_answer", *(f"caption_{k}" for k in range(4)), "correct_answer_template"])
        for name in names:
            options = ["A cat but no dog.", "A dog, no cat", "A dog", "No cat here"]
            rows.writerow([f"/home/them/MSRVTT/videos/all/{name}", 0, *options, "hybrid"])
    with retrieval.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow([column, "captions"])
        for name in names:
            rows.writerow([f"/home/them/MSRVTT/videos/all/{name}", repr([f"a film of {name}", "a cat runs"])])
    encoder = RandomDualEncoder()
    vectors = encode_videos(encoder, [folder / name for name in names], frames=2)
    answered = evaluate_choice(encoder, read_choice(mcq), image_root=folder, frames=2)
    given = evaluate_choice(encoder, read_choice(mcq), image_embeddings=vectors)
    assert answered.chosen.tolist() == given.chosen.tolist()
    found = evaluate_retrieval(encoder, read_retrieval(retrieval), image_root=folder, frames=2)
    assert (
        found.text_ranks.tolist()
        == evaluate_retrieval(encoder, read_retrieval(retrieval), image_embeddings=vectors).text_ranks.tolist()
    )
    (folder / names[1]).write_bytes(b"")
    with pytest.raises(VideoError, match=r"video7011\.mp4: the file is empty"):
        evaluate_choice(encoder, read_choice(mcq), image_root=folder)
    help_text = CliRunner().invoke(app, ["evaluate", "choice", "--help"], env={"COLUMNS": "200"}).output
    assert "--frames" in help_text


def test_pictures_and_videos_may_stand_in_one_table(tmp_path: Path) -> None:
    written(tmp_path / "b.mp4", [render(s, 48).convert("RGB") for s in make_scenes(2, 1)])
    render(make_scenes(1, 2)[0], 48).save(tmp_path / "a.png")
    table = tmp_path / "r.csv"
    table.write_text("filepath,captions\na.png,\"['a cat']\"\nb.mp4,\"['a dog']\"\n")
    result = evaluate_retrieval(RandomDualEncoder(), read_retrieval(table), image_root=tmp_path)
    assert set(result.text_ranks.tolist()) <= {1, 2}


def test_more_frames_than_there_are_cost_nothing(tmp_path: Path) -> None:
    assert len(sample_frames(film(tmp_path / "a.mp4", 6), 10**12)) == 6


def test_the_stated_size_is_looked_at_before_a_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import clipmend.data.video as video

    path = film(tmp_path / "a.mp4", 3, size=64)
    monkeypatch.setattr(video, "DEFAULT_MAX_PIXELS", 4095)
    monkeypatch.setattr(av.VideoFrame, "to_image", lambda frame: pytest.fail("decoded"), raising=False)
    with pytest.raises(VideoError, match="frames of 64 x 64 pixels: too large"):
        sample_frames(path, 1)
