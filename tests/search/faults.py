"""What the tests of faults run in other processes, and the hostile files they are fed."""

from __future__ import annotations

import io
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from search.fakes import FakeEncoder

_CONTEXT = multiprocessing.get_context("forkserver")
# Imported once, not once a process.
_CONTEXT.set_forkserver_preload(["torch", "clipmend.search", "clipmend.backbones.base", "clipmend.negation.mended"])


def index_slowly(folders: list[str], directory: str, shard_rows: int, delay: float, outcome: Any) -> None:
    """Index in this process, a little at a time; puts what came of it into ``outcome``."""
    from clipmend.search import build_index, writer

    writer.SHARD_ROWS = shard_rows
    outcome.put("started")
    try:
        encoder = FakeEncoder(before_batch=lambda _: time.sleep(delay))
        outcome.put(build_index(encoder, folders, directory, batch_size=2, workers=2).count)
    except Exception as error:
        outcome.put(f"{type(error).__name__}: {error}")


def index_within(folders: list[str], directory: str, most_bytes: int, outcome: Any) -> None:
    """Index where no file may become larger than ``most_bytes``."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    index_slowly(folders, directory, 6, 0, outcome)


class Process:
    """A function running in a process of its own."""

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        self._outcome = _CONTEXT.Queue()
        self._process = _CONTEXT.Process(target=function, args=(*arguments, self._outcome))
        self._process.start()
        assert self._outcome.get(timeout=120) == "started"  # imports are not what the tests are about

    def kill(self) -> bool:
        """SIGKILL; gives whether it was still alive."""
        alive = self._process.exitcode is None
        assert self._process.pid is not None
        if alive:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()
        return alive and self._process.exitcode == -signal.SIGKILL

    def outcome(self) -> Any:
        found = self._outcome.get(timeout=600)
        self._process.join()
        return found


def hostile_files(folder: Path, count: int, seed: int = 0) -> list[str]:
    """Write ``count`` files with names of images: cut, flipped, spliced, mislabelled, empty; some happen to be whole."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    noise = Image.fromarray(rng.integers(0, 256, (24, 24, 3), np.uint8))
    whole = []
    kinds: list[tuple[str, str, dict[str, str]]] = [
        *((name, "RGB", {}) for name in ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "PPM", "ICO", "JPEG2000")),
        *(("PNG", mode, {}) for mode in ("P", "I;16", "RGBA")),
        ("JPEG", "CMYK", {}),
        ("GIF", "P", {}),
        ("TIFF", "RGB", {"compression": "tiff_lzw"}),
        ("TGA", "RGB", {"compression": "tga_rle"}),
    ]
    for file_format, mode, options in kinds:
        buffer = io.BytesIO()
        source = noise.convert("L").convert("I").convert("I;16") if mode == "I;16" else noise.convert(mode)
        source.save(buffer, file_format, **options)
        whole.append(buffer.getvalue())
    endings = ("png", "jpg", "gif", "webp", "bmp", "tiff", "ppm", "ico", "tga", "jp2", "heic", "avif")
    names = []
    for number in range(count):
        data = bytearray(whole[rng.integers(len(whole))])
        how = rng.integers(7)
        if how == 0:
            data = data[: rng.integers(len(data))]
        elif how in (1, 2):
            for _ in range(int(rng.integers(1, 40))):
                data[rng.integers(min(len(data), 200) if how == 2 else len(data))] = int(rng.integers(256))
        elif how == 3:
            other = whole[rng.integers(len(whole))]
            data = data[: rng.integers(len(data))] + other[rng.integers(len(other)) :]
        elif how == 4:
            data = bytearray(rng.integers(0, 256, int(rng.integers(400)), np.uint8).tobytes())
        elif how == 5:
            at = int(rng.integers(4, 60))
            data[at : at + 4] = int(rng.integers(1 << 24, 1 << 32)).to_bytes(4, "big")  # sizes and offsets beyond all reason
        name = f"{number:04d}.{endings[rng.integers(len(endings))]}"
        (folder / name).write_bytes(bytes(data))
        names.append(name)
    return names
