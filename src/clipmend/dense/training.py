"""Fine-tune a CLIP or SigLIP on images with long captions, on any number of processes, by Accelerate."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.progress import training_bar
from clipmend.checkpoint import CHECKPOINT, exclusive, load_checkpoint, save_checkpoint
from clipmend.dense.batches import Batch, Batches, Preparer
from clipmend.dense.config import FinetuneConfig
from clipmend.dense.finetuned import FineTuned, Truncated, refreshed
from clipmend.dense.joining import join
from clipmend.dense.launching import Launched, launched
from clipmend.dense.lens import Lens, entries_of, summarise
from clipmend.dense.pairs import Pairs, as_pairs
from clipmend.dense.positions import keep_rows_fixed, stretch
from clipmend.dense.progress import METRICS, MetricsFile, read_metrics
from clipmend.dense.recipes import Joined, Moment
from clipmend.dense.saving import library_of
from clipmend.dense.states import drop_other_bests, load_best, save_best
from clipmend.dense.towers import Towers
from clipmend.dense.validation import HeldOut, embed_rows
from clipmend.losses.grad_cache import cached_backward

__all__ = ["finetune"]

FEW_HELD_OUT = 30
"""Held-out images below which the choice of a state is mostly chance."""

OnValidation = Callable[[int, dict[str, float]], None]


def finetune(
    model: Any,
    data: Any,
    config: FinetuneConfig | None = None,
    *,
    directory: str | os.PathLike[str] | None = None,
    device: str | None = None,
    accelerator: Any = None,
    workers: int | None = None,
    progress: bool = False,
    on_start: Callable[[list[str]], None] | None = None,
    on_validation: OnValidation | None = None,
) -> FineTuned:
    """Fine-tune an image-text model on images with captions.

    The model is trained where it is: a live model or encoder that is given is changed. Weights, optimiser and loss are float32, and
    the arithmetic of the towers what ``config.precision`` says. Under ``accelerate launch`` every process calls this with the same
    arguments; they see disjoint pairs, contrasted with one another, and give the result of one process up to rounding. FSDP is
    taken from ``accelerate launch`` or from ``accelerator``; it has no CPU form, and has not been run.

    Args:
        model: an encoder of :func:`clipmend.load`, or what it takes: a name, a folder, a live model (of transformers or open_clip).
        data: see :func:`clipmend.dense.pairs.as_pairs`.
        config: default: the recipe ``hn-clip`` with its defaults.
        directory: keep checkpoints and ``metrics.jsonl`` here, and go on from here after a kill. The weights at the end are then
            those of an uninterrupted run, bit for bit on one machine.
        device: ``"cpu"`` or default: what Accelerate chooses.
        accelerator: an ``accelerate.Accelerator`` of your own, in place of one made from the configuration.
        workers: threads that read and prepare images (default: one a core, at most 8).
        progress: show a bar with live losses, on a terminal.
        on_start: called with notes: what is trained, negatives a query, captions that are truncated.
        on_validation: called with the step and the metrics after every validation.

    Returns:
        the model in the state chosen, in evaluation mode, with what was measured; ``save(folder)`` writes it.

    Raises:
        ValueError: an encoder or data that cannot be trained on, a checkpoint of another training, or a loss that is not finite
            (step and learning rate are named); a folder that another training is using.
        ImportError: Accelerate (or what the recipe needs) is not installed.
        OSError: the model or an image cannot be read.

    Example::

        done = finetune("openai/clip-vit-base-patch32", "docci:docci/", FinetuneConfig(length=248, batch_size=128, micro_batches=8))
        done.save("clip-docci")
    """
    config = config or FinetuneConfig()
    folder = None if directory is None else Path(directory)
    with (
        launched(config, accelerator, device) as launch,
        exclusive(folder if launch.is_main else None),
        torch.random.fork_rng(devices=[]),
    ):
        encoder = _encoder(model)
        run = _Run(encoder, as_pairs(data), config, launch, folder, workers)
        return run.train(
            progress and launch.is_main, on_start if launch.is_main else None, on_validation if launch.is_main else None
        )


def _encoder(model: Any) -> DualEncoder:
    import clipmend

    encoder = (
        model if isinstance(model, DualEncoder) else clipmend.load(model, device=None if not isinstance(model, str) else "cpu")
    )
    library_of(encoder)  # a bundled encoder, or one without an image side, cannot be saved as a model of either library
    return encoder


class _Run:
    """Everything one training holds."""

    def __init__(
        self, encoder: Any, pairs: Pairs, config: FinetuneConfig, launch: Launched, directory: Path | None, workers: int | None
    ) -> None:
        self.config, self.pairs, self.launch, self.directory, self.workers = config, pairs, launch, directory, workers
        self.started = time.monotonic()
        recipe = config.recipe
        self.checked = recipe.check(pairs)
        self.identity = _identity(config, pairs, encoder)
        before = encoder.context_length
        if config.length is not None and config.length != before:
            stretch(encoder.model, config.length, config.keep)
        self.encoder = refreshed(encoder)
        self.encoder.model.float()  # master weights, whatever the arithmetic
        rows, held = pairs.split(config.validation, config.validation_limit, config.seed)
        self.truncated = Truncated.count(self.encoder, [pairs.captions[row] for row in rows], before)
        torch.manual_seed(config.seed)
        self.towers = Towers(self.encoder, tokens=recipe.tokens(), freeze=config.freeze)
        self.prepared = recipe.prepare(self.towers.model, self.towers.sides())
        self.towers.heads = recipe.heads(self.towers)
        self.towers.checkpoint_gradients(config.gradient_checkpointing)
        preparer = Preparer(self.encoder, pairs, recipe, whole_length=self.towers.whole_length, seed=config.seed)
        self.batches = Batches(
            preparer, rows, batch_size=config.batch_size, accumulate=config.accumulate, micro_batches=config.micro_batches,
            seed=config.seed, rank=launch.rank, world=launch.world,
        )  # fmt: skip
        self.held_out = HeldOut(preparer, held, max(1, min(64, config.batch_size // (launch.world * config.micro_batches))))
        self.steps = config.steps or max(1, round(config.epochs * self.batches.per_epoch))
        self.validate_every = config.validate_every or max(1, min(self.batches.per_epoch, self.steps // 10))
        # A sharded model cannot be saved as it is: this one takes the weights at the end.
        self.whole = deepcopy((self.towers, self.prepared)) if launch.sharded else (self.towers, self.prepared)
        optimizer = torch.optim.AdamW(self._groups(), lr=config.rate, betas=config.betas, eps=config.eps)
        self.model, self.optimizer = launch.prepare(self.towers, optimizer)
        self.device: torch.device = launch.device
        self.image_ids = torch.from_numpy(pairs.image_of)
        self.caption_ids = torch.from_numpy(pairs.caption_ids.astype(np.int64).reshape(-1))
        self.margins: Tensor | None = None
        if recipe.margin == "frozen" and recipe.gamma:
            self.margins = self._caption_features(preparer, rows)
        self.lens = Lens(recipe.gamma or 0.5) if config.lens_every else None

    def _groups(self) -> list[dict[str, Any]]:
        """Parameters by rate and decay: matrices decay, biases, norms, class tokens and the logit scale do not."""
        config, groups = self.config, []
        for heads in (False, True):
            for decays in (True, False):
                chosen = [
                    parameter
                    for name, parameter in self.towers.trained().items()
                    if name.startswith("heads.") == heads and (parameter.ndim > 1) == decays
                ]
                if chosen:
                    rate = config.recipe.head_learning_rate if heads else config.rate
                    groups.append({"params": chosen, "rate": rate, "weight_decay": config.decay if decays else 0.0})
        return groups

    def _caption_features(self, preparer: Preparer, rows: np.ndarray) -> Tensor:
        """``[M, D]`` captions of all pairs by the model as it is now; zero where a pair is not trained on."""
        self.model.eval()
        found = torch.zeros(len(self.pairs), self.encoder.embed_dim)
        make = lambda row: {"text": preparer.ids_of(self.pairs.captions[row])}  # noqa: E731
        found[rows] = embed_rows(self.model, preparer, rows, make, "text", self.held_out.batch_size, self.device)
        return found

    # ---- one step ---------------------------------------------------------------------------------------------------------

    def _rates(self, step: int) -> float:
        """Warm-up, then a cosine to zero; the share of its highest that the rate has."""
        config = self.config
        warm = config.warmup if config.warmup >= 1 else config.warmup * self.steps
        warm = min(int(warm), self.steps - 1)
        if step < warm:
            share = (step + 1) / warm
        else:
            share = 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, self.steps - warm)))
        for group in self.optimizer.param_groups:
            group["lr"] = group["rate"] * share
        return share

    def _step(self, step: int, batches: list[Batch]) -> dict[str, float]:
        """Gradients and update of one step; the terms of the loss, and what was measured."""
        found: dict[str, float] = {}
        self.optimizer.zero_grad(set_to_none=True)
        for place, batch in enumerate(batches):
            with ExitStack() as stack:
                if place < len(batches) - 1 and hasattr(self.model, "no_sync"):
                    stack.enter_context(self.model.no_sync())  # gradients are exchanged once a step
                for name, value in self._contrast(step, batch.to(self.device), last=place == len(batches) - 1).items():
                    found[name] = found.get(name, 0.0) + value / len(batches)
        norm = self.launch.clip(self.model, self.config.grad_clip)
        if not math.isfinite(norm) and self.launch.scaler is None:  # with one, the step is left out and the scale lowered
            raise ValueError(self._not_finite("the gradients are not finite", step))
        self.optimizer.step()
        self.towers.clamp_scale()
        return {**found, "grad_norm": norm}

    def _contrast(self, step: int, batch: Batch, last: bool) -> dict[str, float]:
        """Gradients of one batch, added to those there are."""
        config, found = self.config, {}
        names: list[str] = []
        rows = torch.from_numpy(batch.rows)
        image_ids, caption_ids = (ids[rows].to(self.device) for ids in (self.image_ids, self.caption_ids))
        margins = None if self.margins is None else self.margins[rows].to(self.device)

        def encode(inputs: dict[str, Tensor]) -> list[Tensor]:
            outputs = self.model(inputs)
            names[:] = list(outputs)
            return list(outputs.values())

        def loss(*values: Tensor) -> Tensor:
            joined = join(dict(zip(names, values, strict=True)), batch, image_ids, caption_ids, margins)
            terms = config.recipe.losses(joined, Moment(step, self.steps, step / self.batches.per_epoch))
            total = torch.stack([term.float() for term in terms.values()]).sum()
            found.update({name: float(term.detach()) for name, term in terms.items()})
            found["loss"] = float(total.detach())
            if not math.isfinite(found["loss"]):
                raise ValueError(self._not_finite(f"the loss is {found['loss']}", step))
            found["negatives"] = _negatives(joined)
            if last and self.lens is not None and step % config.lens_every == 0:
                found.update(self.lens.look(joined))
            # Every output is used, if only with zero: DistributedDataParallel waits for all that is behind one.
            return (total + sum(0.0 * value.float().sum() for value in values)) / config.accumulate

        scale = self.launch.scaled
        if len(batch.micro) == 1:
            scale(loss(*encode(batch.micro[0]))).backward()
        else:
            cached_backward(self.model, encode, batch.micro, loss, scale_loss=scale)
        return found

    def _not_finite(self, what: str, step: int) -> str:
        rate = self.optimizer.param_groups[0]["lr"]
        return (
            f"{what} at step {step + 1} of {self.steps}, with a learning rate of {rate:.3g}; choose a lower one (--lr), "
            "or leave out --precision"
        )

    # ---- the loop ---------------------------------------------------------------------------------------------------------

    def train(self, progress: bool, on_start: Callable[[list[str]], None] | None, on_validation: OnValidation | None) -> FineTuned:
        if self.directory is not None and self.launch.is_main:
            self.directory.mkdir(parents=True, exist_ok=True)
        self.launch.wait()
        state = self._resume()
        notes = self._notes()
        if on_start is not None:
            on_start(notes + ([f"going on from step {state['step']:,} of {self.steps:,}"] if state["step"] else []))
        metrics = MetricsFile(self.directory if self.launch.is_main else None, state["step"])
        recipe, start = self.config.recipe, state["step"]
        if recipe.fixed_positions:
            keep_rows_fixed(self.towers.model, recipe.fixed_positions, self.optimizer)
        if not state["history"]:
            self._validate(state, metrics, on_validation)
        with training_bar("fine-tuning", self.steps, progress, start) as show:
            for step, batches in zip(range(start, self.steps), self.batches(start, self.steps, self.workers), strict=True):
                # A step's chance depends on nothing but the step (and, for dropout, the process), so that a resumed run repeats
                # an uninterrupted one.
                torch.manual_seed(int(np.random.default_rng((self.config.seed, 2, step)).integers(2**62)) + self.launch.rank)
                share = self._rates(step)
                self.model.train()
                found = self._step(step, batches)
                state["step"] = step + 1
                show(step + 1, {name: found[name] for name in found if name in ("loss", "global", "tokens")})
                metrics.write(
                    {
                        "step": step + 1, "epoch": round((step + 1) / self.batches.per_epoch, 4), **found,
                        "learning_rate": self.config.rate * share, "logit_scale": self._scale(),
                    }
                )  # fmt: skip
                if step + 1 == self.steps or (step + 1) % self.validate_every == 0:
                    self._validate(state, metrics, on_validation)
                    self._save(state)
                elif (step + 1) % self.config.checkpoint_every == 0:
                    self._save(state)
        return self._finish(state, notes)

    def _scale(self) -> float:
        return float(self.towers.model.logit_scale.detach().float().exp().reshape(-1)[0])  # type: ignore[operator]

    def _validate(self, state: dict[str, Any], metrics: MetricsFile, on_validation: OnValidation | None) -> None:
        self.model.eval()
        found = self.held_out.measure(self.model, self.device)
        step = state["step"]
        state["history"].append({"step": step, **found})
        metrics.write({"step": step, "validation": found})
        if found["score"] >= state["best_score"] or self.config.choose == "last":
            state["best_step"], state["best_score"] = step, max(found["score"], state["best_score"])
            state["best"] = self.launch.weights(self.model, self.towers)
            if self.directory is not None and self.launch.is_main:
                save_best(self.directory, state["best"], step)
        if on_validation is not None:
            on_validation(step, found)

    def _save(self, state: dict[str, Any]) -> None:
        if self.directory is None:
            return
        saved = {name: state[name] for name in ("step", "best_step", "best_score", "history")}
        saved |= {"identity": self.identity, **self.launch.state(self.model, self.towers, self.optimizer, self.directory)}
        if self.launch.is_main:
            save_checkpoint(self.directory / CHECKPOINT, saved)
            drop_other_bests(self.directory, state["best_step"])

    def _resume(self) -> dict[str, Any]:
        fresh: dict[str, Any] = {"step": 0, "best": {}, "best_step": 0, "best_score": -math.inf, "history": []}
        path = None if self.directory is None else self.directory / CHECKPOINT
        if path is None or self.directory is None or not path.exists():
            return fresh
        needed = {*fresh, "weights", "optimizer", "scaler"} - {"best"}
        saved = load_checkpoint(path, self.identity, needed, torch.device("cpu"), what="fine-tuning")
        self.launch.restore(saved, self.model, self.towers, self.optimizer, self.directory)
        return {**{name: saved[name] for name in fresh if name != "best"}, "best": load_best(self.directory, saved["best_step"])}

    def _notes(self) -> list[str]:
        """What is about to happen, for the user."""
        config = self.config
        trained = sum(parameter.numel() for parameter in self.towers.trained().values())
        share = -(-config.batch_size // (self.launch.world * config.micro_batches))
        notes = [
            f"recipe {config.recipe.name}: {config.recipe.about}; {trained / 1e6:,.2f} million weights trained",
            f"{len(self.batches.rows):,} pairs to train on, {len(self.held_out.images):,} images held out; {self.steps:,} steps, "
            f"{self.batches.per_epoch:,} an epoch",
            f"{config.batch_size - 1:,} negatives a query ({self.launch.world} x {config.micro_batches} micro-batches of {share})",
            self.truncated.told()
            + ("; --length 248 gives more positions" if self.truncated.cut and self.truncated.length < 248 else ""),
        ]
        if len(self.held_out.images) < FEW_HELD_OUT:
            notes.append(
                f"{len(self.held_out.images)} images held out are too few to tell states apart: --validation, or --choose last"
            )
        return notes + self.pairs.notes + self.checked + config.recipe.notes(config.batch_size - 1)

    def _finish(self, state: dict[str, Any], notes: list[str]) -> FineTuned:
        config = self.config
        towers, prepared = self.whole
        self.launch.load(towers, state["best"])
        towers.checkpoint_gradients(False)
        config.recipe.finish(towers.model, prepared)
        self.encoder.model = towers.model.eval().requires_grad_(False)
        lens = {} if self.lens is None else self.lens.summary()
        if self.lens is not None and self.directory is not None and self.launch.is_main:  # of earlier lives too
            lens = summarise(entries_of(read_metrics(self.directory / METRICS)))
        return FineTuned(
            encoder=refreshed(self.encoder), config=config, history=state["history"], best_step=state["best_step"],
            steps=self.steps,
            data=self.pairs.name, data_digest=self.pairs.digest(), pairs=len(self.batches.rows), held_out=len(self.held_out.images),
            truncated=self.truncated, processes=self.launch.world, seconds=round(time.monotonic() - self.started, 1), notes=notes,
            lens=lens,
        )  # fmt: skip


def _negatives(joined: Joined) -> float:
    """How many others a query is contrasted with, on average: those of its own image or caption are left out."""
    images, captions = joined.image_ids.cpu().numpy(), joined.caption_ids.cpu().numpy()

    def same(keys: np.ndarray) -> np.ndarray:
        _, place, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
        return counts[place.reshape(-1)]

    shared = same(images) + same(captions) - same(np.stack([images, captions], 1))
    return float((len(images) - shared).mean())


def _identity(config: FinetuneConfig, pairs: Pairs, encoder: DualEncoder) -> str:
    described = {**json.loads(config.identity()), "data": pairs.digest(), "model": encoder.fingerprint.to_dict()}
    return json.dumps(described, sort_keys=True)
