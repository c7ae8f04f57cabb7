"""What each of the two processes of the recipes' tests runs: several trainings, one after the other."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import small_training  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from clipmend.dense import finetune  # noqa: E402

if __name__ == "__main__":
    model, out, cases = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(1)
    for name, options in cases.items():
        done = finetune(model, small_training.told_pairs(), small_training.config(**options), device="cpu", workers=1)
        if int(os.environ["RANK"]) == 0:
            save_file(
                {key: value.contiguous() for key, value in small_training.weights(done.model).items()}, out / f"{name}.safetensors"
            )
            (out / f"{name}.json").write_text(json.dumps(done.to_dict()))
