"""What a run keeps: each finished (method, task) as one JSON file, and image vectors in parts; a killed run goes on from there."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.fingerprint import digest_facts
from clipmend.data.images import ImageError
from clipmend.data.video import VideoError, encode_videos, is_video
from clipmend.evaluation.choice import ChoiceResult
from clipmend.evaluation.judged import RespectResult
from clipmend.evaluation.pairs import PairsResult
from clipmend.evaluation.results import Result, write_json
from clipmend.evaluation.retrieval import RetrievalResult
from clipmend.evaluation.zeroshot import ZeroshotResult

__all__ = ["FORMAT", "ResultStore", "VectorStore", "pack", "unpack"]

FORMAT = 2  # raised when what an evaluator computes changes its meaning: kept results are then computed anew

_CLASSES: dict[str, type[Result]] = {
    result.task: result for result in (ChoiceResult, RetrievalResult, ZeroshotResult, PairsResult, RespectResult)
}
_SHARED = {field.name for field in fields(Result)}


def pack(result: Result) -> dict[str, Any]:
    """A result in CLIP_benchmark's shape, with the rows that paired differences rest on under ``"rows"``."""
    rows: dict[str, Any] = {}
    for field in fields(result):
        if field.name in _SHARED or field.name == "images":
            continue
        value = getattr(result, field.name)
        rows[field.name] = {"dtype": str(value.dtype), "values": _plain(value)} if isinstance(value, np.ndarray) else value
    return {**result.to_dict(), "rows": rows}


def unpack(content: Mapping[str, Any]) -> Result:
    """The result that :func:`pack` wrote.

    Raises:
        ValueError: it is none.
    """
    try:
        kind = _CLASSES[content["task"]]
        known = {field.name for field in fields(kind)}
        values = {name: _restored(value) for name, value in content["rows"].items() if name in known}
        shared = {name: content[name] for name in _SHARED - {"level"}}
        result = kind(**shared, level=content["interval_level"], **values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a kept result: {error!r}") from None
    if isinstance(result, ChoiceResult):
        result.images = [str(image) for image in range(int(result.image_of.max(initial=-1)) + 1)]
    if isinstance(result, (RetrievalResult, RespectResult)):
        result.ks = tuple(result.ks)
    return result


def _plain(values: NDArray[Any]) -> list[Any]:
    if values.dtype.kind == "f":
        whole = values.astype(object)
        whole[np.isnan(values)] = None  # JSON has no NaN
        values = whole
    return list(values.tolist())


def _restored(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"dtype", "values"}:
        return np.array(value["values"], dtype=value["dtype"])  # None becomes NaN
    return value


class ResultStore:
    """Finished results, one JSON file each, named by task, method and the digest of all that the numbers depend on.

    Args:
        folder: where they are kept; made when the first is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, task: str, label: str, key: str) -> Path:
        """Where a result is kept."""
        return self.folder / _slug(task) / f"{_slug(label)}-{key[:12]}.json"

    def get(self, task: str, label: str, key: str) -> Result | None:
        """The kept result; ``None`` where there is none. A damaged file is reported and computed anew."""
        path = self.path(task, label, key)
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["benchmark"]["key"] != key:
                raise ValueError("it is of something else")
            return unpack(content)
        except (ValueError, KeyError, TypeError) as error:
            warnings.warn(f"{path} is damaged and computed anew: {error}", stacklevel=2)
            return None

    def put(self, task: str, label: str, key: str, result: Result, about: Mapping[str, Any]) -> Path:
        """Keep a result, with what the key was made of."""
        return write_json(self.path(task, label, key), {**pack(result), "benchmark": {"key": key, "label": label, **about}})


def _slug(text: str) -> str:
    """A file name; two texts that differ in what is left out of it differ in the key."""
    return "".join(c if c.isalnum() or c in "-._+" else "-" for c in text).strip("-.")[:120] or "x"


class VectorStore:
    """Image and video vectors of one encoder, in parts of a few hundred, so that a kill loses at most one part.

    A vector is found by the file's absolute path, size and time of change, and by the number of frames for a video.

    Args:
        folder: where the parts are kept.
        encoder: embeds what is not there yet.
        frames: frames a video is averaged over.
        batch_size: images a forward pass.
        part: images a part.
    """

    def __init__(self, folder: Path, encoder: DualEncoder, *, frames: int = 4, batch_size: int = 32, part: int = 512) -> None:
        facts = {"image": encoder.fingerprint.image, "dim": encoder.embed_dim, "name": encoder.name}
        if encoder.fingerprint.image:
            facts["name"] = ""  # the digest says it all
        self.folder = folder / digest_facts(facts)[:16]
        self.encoder, self.frames, self.batch_size, self.part = encoder, frames, batch_size, part
        self._known: dict[str, Tensor] = {}
        for index in sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []:
            self._load(index)

    def _load(self, index: Path) -> None:
        try:
            keys = json.loads(index.read_text(encoding="utf-8"))
            rows = np.load(index.with_suffix(".npy"), allow_pickle=False)
            if rows.shape != (len(keys), self.encoder.embed_dim) or not np.isfinite(rows).all():
                raise ValueError(f"holds {rows.shape} for {len(keys)} images")
        except (OSError, ValueError, EOFError) as error:
            warnings.warn(f"{index} is damaged; its images are embedded anew: {error}", stacklevel=3)
            return
        self._known.update(zip(keys, torch.from_numpy(rows), strict=True))

    def key(self, path: Path) -> str:
        """What a file's vector is found by."""
        status = path.stat()
        frames = f"|{self.frames}" if is_video(path) else ""
        return hashlib.sha256(f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}{frames}".encode()).hexdigest()

    def get(
        self, files: Mapping[str, Path], *, skip_broken: bool = False, advance: Callable[[int], None] | None = None
    ) -> tuple[dict[str, Tensor], list[str]]:
        """Vectors by name.

        Args:
            files: name to file.
            skip_broken: leave out, and name, what cannot be read; else it is an error.
            advance: called with the number of images just embedded.

        Returns:
            name to unit vector, and a line for each file left out.

        Raises:
            ImageError, VideoError: a file that cannot be read.
        """
        keys = {name: self.key(path) for name, path in files.items()}
        new: dict[str, Path] = {}
        for name, key in keys.items():
            if key not in self._known:
                new.setdefault(key, files[name])
        broken: dict[str, str] = {}
        waiting = list(new.items())
        for start in range(0, len(waiting), self.part):
            chunk = waiting[start : start + self.part]
            whole, bad = self._embed(chunk, skip_broken)
            broken.update(bad)
            if whole:
                self._write(whole)
            if advance is not None:
                advance(len(chunk))
        found = {name: self._known[key] for name, key in keys.items() if key in self._known}
        return found, [broken[key] for key in dict.fromkeys(keys.values()) if key in broken]

    def _embed(self, chunk: Sequence[tuple[str, Path]], skip_broken: bool) -> tuple[dict[str, Tensor], dict[str, str]]:
        try:
            return dict(zip((key for key, _ in chunk), self._vectors([path for _, path in chunk]), strict=True)), {}
        except (ImageError, VideoError, OSError):  # OSError: an encoder of the user's own that opens files itself
            if not skip_broken:
                raise
        whole: dict[str, Tensor] = {}
        broken: dict[str, str] = {}
        for key, path in chunk:  # one by one, to tell which
            try:
                whole[key] = self._vectors([path])[0]
            except (ImageError, VideoError, OSError) as error:
                broken[key] = str(error)
        return whole, broken

    def _vectors(self, paths: Sequence[Path]) -> Tensor:
        vectors = torch.zeros(len(paths), self.encoder.embed_dim)
        for video in (False, True):
            rows = [i for i, path in enumerate(paths) if is_video(path) == video]
            if rows and video:
                vectors[rows] = encode_videos(
                    self.encoder, [paths[i] for i in rows], frames=self.frames, batch_size=self.batch_size
                ).cpu()
            elif rows:
                vectors[rows] = self.encoder.encode_images([paths[i] for i in rows], batch_size=self.batch_size).float().cpu()
        bad = (~torch.isfinite(vectors).all(-1)).nonzero().flatten().tolist()
        if bad:
            raise ValueError(f"the embedding of image {paths[bad[0]]} is not finite ({len(bad)} of {len(paths)} images are not)")
        return vectors

    def _write(self, whole: Mapping[str, Tensor]) -> None:
        """The vectors first, then their keys: a part without keys is no part."""
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = torch.stack(list(whole.values())).numpy()
        name = hashlib.sha256("".join(whole).encode()).hexdigest()[:16]
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".part", dir=self.folder)
        with os.fdopen(handle, "wb") as file:
            np.save(file, rows, allow_pickle=False)
        os.replace(temporary, self.folder / f"{name}.npy")
        write_json(self.folder / f"{name}.json", list(whole))
        self._known.update(zip(whole, torch.from_numpy(rows), strict=True))
