"""A service over coloured pictures and an encoder without weights; also a program, to try the page against:

python tests/service/fake_service.py --port 8765
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from tests.search.fakes import FakeEncoder, FakeMended, colour_folder
from tests.search.memory_gallery import MemoryGallery
from torch import Tensor

from clipmend.search.gallery import BASE_FIELDS, GalleryError, Item
from clipmend.search.searcher import Searcher

MAY = 1_714_521_600.0  # 2024-05-01


class PictureGallery(MemoryGallery):
    """Of pictures in a folder, made by ``FakeEncoder``."""

    closed = False

    @classmethod
    def of(cls, folder: Path, count: int = 30) -> PictureGallery:
        colours = colour_folder(folder, count)
        vectors = FakeEncoder().encode_images([folder / name for name in colours])
        items = [
            Item(
                i,
                name,
                {
                    "folder": name.rpartition("/")[0],
                    "name": name.rpartition("/")[2],
                    "date": MAY + 86_400.0 * i,
                    "size": float((folder / name).stat().st_size),
                    "width": 6.0,
                    "height": 5.0,
                },
            )
            for i, name in enumerate(colours)
        ]
        return cls(items, vectors, fields=BASE_FIELDS, root=folder)

    def values(self, name: str, limit: int = 100) -> list[tuple[str, int]]:
        if self.fields.get(name) not in ("text", "folder"):
            raise GalleryError(f"no text field {name!r}")
        return [(str(value), count) for value, count in Counter(i.fields[name] for i in self._items.values()).most_common(limit)]

    def close(self) -> None:
        self.closed = True


class SlowEncoder(FakeEncoder):
    """Counts its forward passes, and takes its time."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds
        self.calls: list[list[str]] = []

    def encode_texts(self, texts: Sequence[str], **options: Any) -> Tensor:
        self.calls.append(list(texts))
        time.sleep(self.seconds)
        if any("unspeakable" in text for text in texts):
            raise ValueError("a text is unspeakable")
        return super().encode_texts(texts, **options)


def searcher_of(folder: Path, encoder: FakeEncoder | None = None, patched: bool = True, count: int = 30) -> Searcher:
    return Searcher(PictureGallery.of(folder, count), encoder or FakeEncoder(), FakeMended() if patched else None, files=False)


def unit(vectors: Any) -> np.ndarray:
    rows = np.asarray(vectors, np.float32)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def main() -> None:
    import uvicorn

    from clipmend.service import Settings, create_app

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--token")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.0, help="that the encoder takes for a batch of texts")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        searcher = searcher_of(Path(folder), SlowEncoder(given.seconds), count=given.count)
        settings = Settings(token=given.token, examples=("red", "no red", '"red" - "blue"'), shutdown_timeout=5)
        uvicorn.run(create_app(searcher, settings), host="127.0.0.1", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
