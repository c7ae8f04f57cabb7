"""Ranks by counting, in blocks, against the dense one-hot way, side by side.

The dense way is what evaluation scripts commonly do: the whole score matrix, a boolean relevance matrix of the same shape, the
k best of each row and their one-hot vectors, batch by batch, for each k and both directions. "lean" spares it the one-hot vectors.
Each way runs in a process of its own, on the same embeddings and as many threads; memory is the process's highest resident size
during the work minus what it held before.

    python benchmarks/retrieval_metrics.py                     # 25,000 texts x 5,000 images, width 512
    python benchmarks/retrieval_metrics.py --images 1000
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from clipmend.evaluation.ranking import ranks_both_ways

KS = (1, 5, 10)


def embeddings(images: int, texts_per_image: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images, texts near their images, and the image of each text; the same in every process."""
    generator = torch.Generator().manual_seed(0)
    image = torch.nn.functional.normalize(torch.randn(images, width, generator=generator), dim=-1)
    image_of = torch.arange(images).repeat_interleave(texts_per_image)
    noise = torch.randn(len(image_of), width, generator=generator) / width**0.5
    return image, torch.nn.functional.normalize(image[image_of] + 6 * noise, dim=-1), image_of


def counted(images: torch.Tensor, texts: torch.Tensor, image_of: torch.Tensor) -> dict[str, float]:
    """This project's way."""
    # No tie tolerance here, so that the answers must agree to the last query.
    text_ranks, image_ranks = ranks_both_ways(texts, images, image_of, tie_tolerance=0.0)
    found = {}
    for k in KS:
        found[f"image@{k}"] = float((text_ranks <= k).float().mean())
        found[f"text@{k}"] = float((image_ranks <= k).float().mean())
    return found


def dense(images: torch.Tensor, texts: torch.Tensor, image_of: torch.Tensor, batch: int = 64) -> dict[str, float]:
    """The dense way: score matrix, relevance matrix, one-hot top k."""
    scores = texts @ images.T
    relevant = torch.zeros_like(scores, dtype=torch.bool)
    relevant[torch.arange(len(texts)), image_of] = True
    found = {}
    for k in KS:
        for name, s, r in (("image", scores, relevant), ("text", scores.T, relevant.T)):
            hits = []
            for start in range(0, len(s), batch):
                top = s[start : start + batch].topk(k, dim=1).indices
                one_hot = torch.nn.functional.one_hot(top, num_classes=s.shape[1])  # [batch, k, gallery]
                hits.append((one_hot * r[start : start + batch, None]).sum((1, 2)) > 0)
            found[f"{name}@{k}"] = float(torch.cat(hits).float().mean())
    return found


def lean(images: torch.Tensor, texts: torch.Tensor, image_of: torch.Tensor) -> dict[str, float]:
    """The dense way without the one-hot vectors: score matrix, relevance matrix, one top k a direction, relevance gathered."""
    scores = texts @ images.T
    relevant = torch.zeros_like(scores, dtype=torch.bool)
    relevant[torch.arange(len(texts)), image_of] = True
    found = {}
    for name, s, r in (("image", scores, relevant), ("text", scores.T, relevant.T)):
        hits = r.gather(1, s.topk(max(KS), dim=1).indices)
        for k in KS:
            found[f"{name}@{k}"] = float(hits[:, :k].any(1).float().mean())
    return found


WAYS = {"counted": counted, "dense": dense, "lean": lean}


def peak_bytes() -> int:
    """Highest resident size of this process so far (Linux: since :func:`forget_peak`)."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would start from what the parent held when it forked
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def forget_peak() -> None:
    """Start the peak anew from what is held now, where the system allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def work(way: str, folder: Path) -> dict[str, object]:
    """One way, once, in this process, on embeddings from files: making them here would raise the peak before the work."""
    data = [torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("images", "texts", "image_of")]
    WAYS[way](*embeddings(64, 2, 16))  # first-call costs are nobody's
    forget_peak()
    before = peak_bytes()
    start = time.perf_counter()
    metrics = WAYS[way](*data)
    return {"seconds": time.perf_counter() - start, "bytes": peak_bytes() - before, "metrics": metrics}


def main() -> None:
    """Run every way in a process of its own and print times, memory and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--texts-per-image", type=int, default=5)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--way", choices=sorted(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.way:
        print(json.dumps(work(args.way, args.folder)))
        return
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        data = embeddings(args.images, args.texts_per_image, args.width)
        for name, tensor in zip(("images", "texts", "image_of"), data, strict=True):
            np.save(Path(folder) / f"{name}.npy", tensor.numpy())
        del data
        for way in WAYS:
            command = [sys.executable, __file__, "--way", way, "--folder", folder, "--threads", str(args.threads)]
            found[way] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    own = found["counted"]
    print(f"{args.images * args.texts_per_image:,} texts x {args.images:,} images, width {args.width}, {args.threads} thread(s)")
    for way, result in found.items():
        ratio = f"{result['seconds'] / own['seconds']:6.1f}x time {result['bytes'] / max(own['bytes'], 1):6.1f}x memory"
        print(f"{way:8} {result['seconds']:8.2f} s {result['bytes'] / 2**20:9.1f} MiB   {ratio}")
        for name, value in result["metrics"].items():
            if abs(value - own["metrics"][name]) > 1e-9:
                raise SystemExit(f"{way} disagrees on {name}: {value} against {own['metrics'][name]}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
