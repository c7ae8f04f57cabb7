"""What the trainer needs of Accelerate: processes, precision, wrapped models, and states that can be written and read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clipmend.dense.config import FinetuneConfig
from clipmend.dense.towers import Towers

__all__ = ["Launched", "launched"]

_SHARDED = "sharded"


@contextmanager
def launched(config: FinetuneConfig, accelerator: Any = None, device: str | None = None) -> Iterator[Launched]:
    """An Accelerator for one training, made or given.

    One that is made here is put away at the end, so that the next training may have another precision.

    Raises:
        ImportError: Accelerate is not installed. ValueError: a precision or device that cannot be had.
    """
    try:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
    except ImportError as error:
        raise ImportError(f"fine-tuning runs on Accelerate ({error}); install it with: pip install 'clipmend[train]'") from error
    if accelerator is not None:
        if device is not None:
            raise ValueError("an accelerator has its device; leave device= out")
        if config.precision not in (None, accelerator.mixed_precision):
            raise ValueError(f"precision is {config.precision!r}, and the accelerator's is {accelerator.mixed_precision!r}")
        yield Launched(accelerator)
        return
    if device not in (None, "cpu") and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} cannot be used here; leave it out, or say 'cpu'")
    try:
        made = Accelerator(mixed_precision=config.precision, cpu=True if device == "cpu" else None)
    except (ValueError, ImportError) as error:
        raise ValueError(f"Accelerate cannot run this (precision {config.precision!r}): {error}") from error
    try:
        if made.mixed_precision == "fp16" and made.device.type == "cpu":
            raise ValueError("precision 'fp16' needs a GPU: on a CPU nothing would be rounded; 'bf16' runs on both")
        yield Launched(made)
    finally:
        made.free_memory()
        AcceleratorState._reset_state()


class Launched:
    """An Accelerator at work.

    Args:
        accelerator: ``accelerate.Accelerator``.
    """

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.rank: int = accelerator.process_index
        self.world: int = accelerator.num_processes
        self.is_main: bool = accelerator.is_main_process
        self.device: torch.device = accelerator.device
        self._names: tuple[str, ...] = ()
        self.sharded = str(accelerator.distributed_type).endswith("FSDP")

    @property
    def scaler(self) -> Any:
        """The gradient scaler of float16, else ``None``."""
        return self.accelerator.scaler

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss, times the gradient scaler's factor."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def prepare(self, towers: Towers, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        """Moved and wrapped."""
        self._names = tuple(towers.trained())  # before a wrapper gives its own
        return self.accelerator.prepare(towers, optimizer)

    def clip(self, model: Any, most: float) -> float:
        """Clip the gradients' norm and give what it was."""
        return float(self.accelerator.clip_grad_norm_(model.parameters(), most or float("inf")))

    def wait(self) -> None:
        """For all processes."""
        self.accelerator.wait_for_everyone()

    # ---- states -------------------------------------------------------------------------------------------------------------

    def weights(self, model: Any, towers: Towers) -> dict[str, Tensor]:
        """Copies of what is trained, on the CPU, by the towers' own names."""
        if self.sharded:
            whole = self.accelerator.get_state_dict(model)
            return {name: whole[name].clone() for name in self._names if name in whole}
        return {name: parameter.detach().to("cpu", copy=True) for name, parameter in towers.trained().items()}

    def load(self, towers: Towers, weights: dict[str, Tensor]) -> None:
        """Put them back."""
        own = towers.trained()
        with torch.no_grad():
            for name, value in weights.items():
                own[name].copy_(value)

    def state(self, model: Any, towers: Towers, optimizer: Any, folder: Path) -> dict[str, Any]:
        """Weights, optimiser and scaler for a checkpoint; sharded ones go to a folder of their own, by Accelerate."""
        scaler = None if self.scaler is None else self.scaler.state_dict()
        if self.sharded:
            self._save_sharded(folder)
            return {"weights": {}, "optimizer": {}, "scaler": scaler}
        return {"weights": self.weights(model, towers), "optimizer": optimizer.state_dict(), "scaler": scaler}

    def restore(self, saved: dict[str, Any], model: Any, towers: Towers, optimizer: Any, folder: Path) -> None:
        """What :meth:`state` gave."""
        if self.sharded:
            self.accelerator.load_state(str(folder / _SHARDED))
        else:
            self.load(towers, saved["weights"])
            optimizer.load_state_dict(saved["optimizer"])
        if self.scaler is not None and saved["scaler"] is not None:
            self.scaler.load_state_dict(saved["scaler"])

    def _save_sharded(self, folder: Path) -> None:
        part = folder / f"{_SHARDED}.part"
        self.accelerator.save_state(str(part))
        self.wait()
        if self.is_main:
            shutil.rmtree(folder / _SHARDED, ignore_errors=True)
            os.replace(part, folder / _SHARDED)
        self.wait()
