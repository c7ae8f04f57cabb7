"""Attention of one learned query: folded into the keys against ``torch.nn.MultiheadAttention``, in one process, same weights.

64 texts of 77 tokens of width 512, one thread, no padding trimmed: the size of a CLIP batch. The framework's module gets its
fastest settings (no attention weights returned). Both are checked to give the same result first.

    python benchmarks/folded_attention.py

Prints milliseconds of processor time, in which other programs do not count (medians of runs in turn), and the median ratio of
neighbouring runs; ``--json FILE`` writes them. Aim: at least 10 times faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clipmend.negation.networks import FoldedAttention


def in_turn(slow: Callable[[], Any], quick: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Median milliseconds of both and median ratio of neighbouring runs: a busy machine is busy for both."""
    taken = []
    for _ in range(repeats + 1):
        marks = [time.process_time()]
        for run in (slow, quick):
            run()
            marks.append(time.process_time())
        taken.append((1000 * (marks[1] - marks[0]), 1000 * (marks[2] - marks[1])))
    taken = taken[1:]  # the first warms up
    return {
        "framework_ms": round(statistics.median(slow for slow, _ in taken), 2),
        "folded_ms": round(statistics.median(quick for _, quick in taken), 2),
        "ratio": round(statistics.median(slow / quick for slow, quick in taken), 1),
    }


def measure(batch: int, tokens: int, width: int, repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    folded = FoldedAttention(width, 8, dropout=0.0).eval()
    framework = nn.MultiheadAttention(width, 8, batch_first=True).eval()
    framework.load_state_dict({name: value for name, value in folded.state_dict().items() if name != "query"})
    states = torch.randn(batch, tokens, width)
    mask = torch.arange(tokens) < torch.randint(8, tokens + 1, (batch,))[:, None]
    queries = folded.query.detach().expand(batch, 1, -1).contiguous()

    def ours() -> Tensor:
        return folded(states, mask)

    def theirs() -> Tensor:
        return framework(queries, states, states, key_padding_mask=~mask, need_weights=False)[0].squeeze(1)

    with torch.inference_mode():
        difference = (ours() - theirs()).abs().max().item()
        forward = in_turn(theirs, ours, repeats)
    training = in_turn(lambda: theirs().sum().backward(), lambda: ours().sum().backward(), repeats)
    if difference > 1e-5:
        raise SystemExit(f"the two differ by {difference:.1e}")
    return {
        "shape": [batch, tokens, width],
        "threads": torch.get_num_threads(),
        "largest_difference": difference,
        "forward": forward,
        "forward_and_backward": training,
        "aim": 10,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=77)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result = measure(arguments.batch, arguments.tokens, arguments.width, arguments.repeats)
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
