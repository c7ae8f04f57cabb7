"""What ONNX and 8-bit weights gain on a CPU: the mended text side in PyTorch, as exported, and as exported with 8 bits.

The text tower has ViT-B/32's size and random weights, which cost the same as trained ones, with the correction network on it at its
full size. All three get the same padded ids and run in turn in one process. The aim holds where the processor multiplies 8-bit
integers natively (VNNI, or ARM's dot product); the flags are stated.

    python benchmarks/onnx_cpu.py

Prints texts a second of processor time (medians), and the median ratio of neighbouring runs; ``--json FILE`` writes them. Aim:
8 bits at least twice as fast as PyTorch's float32.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ecn_overhead import vit_b32

import clipmend
from clipmend.negation.export import INT8, TEXT, session
from clipmend.negation.export_graphs import TextGraph

FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8", "asimddp", "i8mm")


def cpu() -> dict[str, Any]:
    """Name of the processor, and which of the instructions that matter here it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return {"name": platform.processor() or platform.machine(), "flags": "unknown"}
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set((values.get("flags") or values.get("Features") or "").split())
    return {"name": values.get("model name", platform.machine()), "flags": [flag for flag in FLAGS if flag in flags]}


def compare(sides: dict[str, Callable[[], Any]], texts: int, repeats: int) -> dict[str, Any]:
    """Texts a second of each side, and how much faster than the first each other one is."""
    taken: list[dict[str, float]] = []
    for _ in range(repeats + 1):
        row = {}
        for name, run in sides.items():
            start = time.process_time()
            run()
            row[name] = time.process_time() - start
        taken.append(row)
    taken = taken[1:]  # the first warms up
    first = next(iter(sides))
    return {
        "texts_per_second": {name: round(texts / statistics.median(row[name] for row in taken), 1) for name in sides},
        "ratio": {name: round(statistics.median(row[first] / row[name] for row in taken), 2) for name in sides if name != first},
    }


def measure(repeats: int, shapes: list[tuple[int, int]], threads: int) -> dict[str, Any]:
    encoder = vit_b32()
    patch = clipmend.PeakPatch.untrained(encoder)
    tower: Any = encoder.tower  # type: ignore[attr-defined]
    config = patch.config
    assert config.peak is not None
    assert config.anchor is not None
    graph = TextGraph(
        tower,
        patch.ecn.eval(),
        peak=config.peak,
        anchor=config.anchor,
        scn_layers=(),
        alpha=float(patch.ecn.log_alpha.detach().exp()),
        normalize=True,
    ).eval()
    result: dict[str, Any] = {"cpu": cpu(), "threads": threads, "aim_ratio_int8": 2}
    with tempfile.TemporaryDirectory() as folder:
        report = patch.export_onnx(encoder, folder, int8=True)
        result["megabytes"] = {name: round(size / 1e6, 1) for name, size in report.files.items()}
        result["difference"] = report.text_embeds
        result["int8_cosine"] = {"mean": report.cosine_mean, "minimum": report.cosine_min}
        whole, small = (session(Path(folder) / name, threads) for name in (TEXT, INT8))
        for batch, length in shapes:
            ids = torch.randint(0, 200, (batch, length), generator=torch.Generator().manual_seed(0))
            mask = torch.ones_like(ids)
            feed = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}

            def torch_side(ids: Any = ids, mask: Any = mask) -> Any:
                with torch.inference_mode():
                    return graph(ids, mask)

            sides: dict[str, Callable[[], Any]] = {
                "torch": torch_side,
                "onnx": lambda feed=feed: whole.run(["text_embeds"], feed),  # type: ignore[misc]
                "onnx_int8": lambda feed=feed: small.run(["text_embeds"], feed),  # type: ignore[misc]
            }
            result[f"{batch}x{length}"] = compare(sides, batch, repeats)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--shapes", nargs="+", default=["16x77", "64x16", "1x16"], help="texts x tokens a text")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shapes = [(int(batch), int(length)) for batch, length in (shape.split("x") for shape in arguments.shapes)]
    result = measure(arguments.repeats, shapes, arguments.threads)
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
