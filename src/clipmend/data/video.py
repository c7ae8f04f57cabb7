"""Videos as the mean of some of their frames: what image encoders make of them (NegBench's MSR-VTT tables, arXiv 2501.09425).

Frames come from the middles of equal parts of the video. NegBench takes four, spread evenly, and averages their normalised
embeddings, as is done here; its four may be others than ours, and it replaces a video that cannot be read by black frames, where
this module names it. Needs PyAV, the extra ``video``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from clipmend.data.images import DEFAULT_MAX_PIXELS

if TYPE_CHECKING:
    from torch import Tensor

    from clipmend.backbones.base import DualEncoder

__all__ = ["FRAMES", "VIDEO_SUFFIXES", "VideoError", "encode_videos", "is_video", "sample_frames"]

FRAMES = 4
"""Frames of a video unless told otherwise, as in NegBench."""

VIDEO_SUFFIXES = frozenset(
    f".{ending}" for ending in ("mp4", "m4v", "mov", "avi", "mkv", "webm", "mpg", "mpeg", "wmv", "flv", "3gp")
)
"""File name endings (lower case) that are taken for videos."""


_WHOLE = 0.8  # a video that ends, by more than a second, before this share of its stated length is cut off


class VideoError(ValueError):
    """A video that cannot be used; names the file."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = str(path), reason


def is_video(name: str | os.PathLike[str]) -> bool:
    """Whether a file name ends as videos do."""
    return Path(name).suffix.lower() in VIDEO_SUFFIXES


def sample_frames(path: str | os.PathLike[str], count: int = FRAMES) -> list[Image.Image]:
    """Frames from the middles of ``count`` equal parts of a video (all of them where it has fewer).

    The video is read twice, once without decoding to count its frames, so that containers without a length, and those that state a
    wrong one, are sampled evenly too. One frame at a time is decoded.

    Args:
        path: the file.
        count: how many frames, at least 1.

    Returns:
        RGB images, in the order of the video.

    Raises:
        VideoError: missing, empty, no video, without frames, cut off, or with frames of more than 100 megapixels.
        ImportError: PyAV is not installed (the extra is named).
    """
    if count < 1:
        raise ValueError(f"at least one frame of a video is needed, not {count}")
    try:
        import av
    except ImportError:
        raise ImportError('reading videos needs the package av: pip install "clipmend[video]"') from None
    file = Path(path)
    if not file.is_file():
        raise VideoError(path, "no such file")
    if not file.stat().st_size:
        raise VideoError(path, "the file is empty (0 bytes)")
    try:
        with av.open(str(file)) as container:
            if not container.streams.video:
                raise VideoError(path, "holds no video stream")
            total, end = 0, 0.0
            for packet in container.demux(container.streams.video[0]):
                if packet.size:
                    total += 1
                    if packet.pts is not None and packet.time_base is not None:
                        end = max(end, float(packet.pts * packet.time_base))
            stated = _stated_seconds(container)
        if not total:
            raise VideoError(path, "holds no frames")
        if stated is not None and end < _WHOLE * stated - 1:
            raise VideoError(path, f"is cut off: it ends at {end:.1f} of {stated:.1f} seconds")
        wanted = {(2 * k + 1) * total // (2 * count) for k in range(count)} if count < total else set(range(total))
        found: list[Image.Image] = []
        decoded = 0
        with av.open(str(file)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            _check_size(path, stream.width, stream.height)  # as stated, before any memory is taken for a frame
            for frame in container.decode(stream):
                if decoded in wanted:
                    _check_size(path, frame.width, frame.height)
                    found.append(frame.to_image())
                decoded += 1
                if len(found) == len(wanted):
                    break
    except (av.error.FFmpegError, OSError, ValueError) as error:
        if isinstance(error, VideoError):
            raise
        raise VideoError(path, f"cannot be read as a video: {error}") from None
    if len(found) < len(wanted):
        raise VideoError(path, f"is cut off: {decoded} of {total} frames can be decoded")
    return found


def _check_size(path: str | os.PathLike[str], width: int, height: int) -> None:
    if width * height > DEFAULT_MAX_PIXELS:
        raise VideoError(path, f"frames of {width} x {height} pixels: too large")


def _stated_seconds(container: Any) -> float | None:
    """How long the file says that its pictures last; ``None`` where it does not, or where sound may last longer."""
    stream = container.streams.video[0]
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return container.duration / 1e6 if container.duration and len(container.streams) == 1 else None


def encode_videos(
    encoder: DualEncoder,
    paths: Sequence[str | os.PathLike[str]],
    *,
    frames: int = FRAMES,
    batch_size: int = 32,
    progress: bool = False,
) -> Tensor:
    """Embed videos: the mean of the unit embeddings of their frames, made a unit vector.

    Args:
        encoder: embeds the frames.
        paths: ``N`` videos.
        frames: frames of each.
        batch_size: frames a forward pass.
        progress: show a progress bar on a terminal.

    Returns:
        float32 ``[N, D]``, L2-normalised.

    Raises:
        VideoError, ImportError: as :func:`sample_frames`.
    """
    import torch
    from torch.nn import functional as F

    from clipmend.backbones.progress import track

    rows = []
    for path in track(paths, len(paths), "videos", progress):
        sampled = sample_frames(path, frames)
        rows.append(F.normalize(encoder.encode_images(sampled, batch_size=batch_size).float(), dim=-1).mean(0))
    joined = torch.stack(rows) if rows else torch.zeros(0, encoder.embed_dim)
    return F.normalize(joined, dim=-1)
