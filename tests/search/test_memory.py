"""The memory of indexing, by the peak of processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

TESTS = Path(__file__).parents[1]

PROGRAM = """
import resource, sys
from pathlib import Path
from search.fakes import FakeEncoder
from clipmend.search import build_index
import clipmend.search.writer as writer

writer.SHARD_ROWS = 512  # what waits to be written is bounded by this; at its usual size it would hide in the noise
encoder = FakeEncoder()
report = build_index(encoder, sys.argv[1], sys.argv[2], approximate=False)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(report.count, peak)
"""


def peak(pictures: Path, index: Path) -> tuple[int, int]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(pictures), str(index)], env=environment, capture_output=True, text=True, check=True
    )
    count, size = ran.stdout.split()[-2:]
    return int(count), int(size)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no resource module")
def test_the_peak_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    """60,000 files, each of a content of its own, take at most 6 MB more than 20,000, by when the database's caches are full."""
    peaks = []
    for count in (20_000, 60_000):
        pictures = tmp_path / str(count)
        for i in range(count):
            folder = pictures / f"{i // 500:03d}"
            if i % 500 == 0:
                folder.mkdir(parents=True)
            Image.new("RGB", (2, 2), (i & 255, i >> 8 & 255, i >> 16 & 255)).save(folder / f"{i:06d}.bmp")
        indexed, size = peak(pictures, tmp_path / f"{count}.index")
        assert indexed == count
        peaks.append(size)
    assert peaks[1] - peaks[0] < 6e6, [f"{size / 1e6:.1f} MB" for size in peaks]
