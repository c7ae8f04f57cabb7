"""What processes of the trainer's tests run: one training, or one that is killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import accelerate  # noqa: E402, F401 (imported by a training; once is enough for all lives)
import small_training  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import clipmend  # noqa: E402
from clipmend.dense import finetune  # noqa: E402
from clipmend.dense.progress import METRICS, read_metrics  # noqa: E402


def train(model: str, work: str | None, out: str, options: dict[str, Any]) -> None:
    """One training; the weights, and what was measured, written down by the first process."""
    torch.set_num_threads(1)
    count = options.pop("count", 24)
    done = finetune(model, small_training.pairs(count), small_training.config(**options), directory=work, device="cpu", workers=2)
    if int(os.environ.get("RANK", "0")) == 0:
        save_file({name: value.contiguous() for name, value in small_training.weights(done.model).items()}, out)
        Path(out).with_suffix(".json").write_text(json.dumps(done.to_dict()))


def lives(model: str, work: str, out: str, options: dict[str, Any], kills: list[int]) -> None:
    """The same training, killed with SIGKILL as soon as it has written each of these steps, and started again."""
    clipmend.load(model, device="cpu")  # what is imported here need not be by each life
    for kill in [*kills, None]:
        child = os.fork()
        if child == 0:
            train(model, work, out, options)
            os._exit(0)
        if kill is None:
            assert os.waitpid(child, 0)[1] == 0
            return
        while max((entry["step"] for entry in read_metrics(Path(work) / METRICS)), default=-1) < kill:
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "it ended before it was killed"
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    model, work, out, options, *kills = sys.argv[1:]
    if kills:
        lives(model, work, out, json.loads(options), json.loads(kills[0]))
    else:
        train(model, work or None, out, json.loads(options))
