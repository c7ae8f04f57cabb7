"""Fit a patch: train the two correction networks on features that were extracted once."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.progress import training_bar
from clipmend.checkpoint import CHECKPOINT, exclusive, load_checkpoint, save_checkpoint
from clipmend.data.records import NegationData
from clipmend.negation.config import PeakPatchConfig
from clipmend.negation.networks import EmbeddingCorrectionNetwork, ScoreCorrectionNetwork
from clipmend.negation.objective import pair_loss, preservation_loss, question_loss, released_loss, truthful_loss
from clipmend.negation.patch import PeakPatch
from clipmend.negation.sampling import Source
from clipmend.negation.sources import Preparation, digest_of

__all__ = ["LOSSES", "fit"]

LOSSES = (
    "ecn: images against true and false captions; text: stand-ins for noun sets likewise; preserve: plain captions stay in place; "
    "scn: questions by the corrected score; pretrain: regression onto what a denial takes away"
)
"""What the terms are that a progress bar shows."""


def fit(
    encoder: DualEncoder,
    data: NegationData | str | os.PathLike[str] | None = None,
    config: PeakPatchConfig | None = None,
    *,
    nouns: Sequence[str] | int | None = None,
    image_embeddings: Tensor | None = None,
    directory: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    progress: bool = True,
    on_validation: Callable[[int, dict[str, float]], None] | None = None,
) -> PeakPatch:
    """Fit a patch for ``encoder``; its weights and its image side stay as they are.

    Three kinds of fit, by what is given:

    - ``data`` and ``config.text_only_weight > 0`` (the default): images, mixed with text-only noun sets. The noun sets teach
      the *operation* of negation, the images what this encoder's image side looks like. The best choice where there is data.
    - ``data`` with ``text_only_weight=0``: images only.
    - no ``data``: text-only. No image at all; the first thing to try with a CLIP of one's own.

    Args:
        encoder: the backbone.
        data: annotated images and captions, or a folder made by ``clipmend scenes``.
        config: hyper-parameters; layers left ``None`` are suggested by :func:`clipmend.diagnose`.
        nouns: for text-only pairs, the nouns to speak of, or how many of the shipped list to take (default: all of it).
        image_embeddings: ``[N, D]`` embeddings of ``data.images``, if they exist already. Without ``data``: a sample of
            embeddings of the user's images (an index), whose mean tells text-only training where images lie.
        directory: keep features and checkpoints here, and go on from here after a kill.
        device: where to train; default: where the encoder is.
        progress: show progress bars with live losses on a terminal; elsewhere nothing is shown.
        on_validation: called with the step and the metrics after every validation.

    Returns:
        the patch of the latest state whose validation score is not clearly (a standard error) below the best; its metrics within.

    Raises:
        ValueError: neither data nor nouns, data without negated captions, a folder that is for tests or for the other objective
            (see :func:`clipmend.data.purpose.check_for_fit`), embeddings that are not finite, or a folder in use by another fit.
    """
    config = _with_layers(config or PeakPatchConfig(), encoder, progress)
    folder = None if directory is None else Path(directory)
    with exclusive(folder), torch.random.fork_rng(devices=[]):
        return _Run(encoder, data, config, nouns, image_embeddings, folder, device, progress).train(on_validation)


def _with_layers(config: PeakPatchConfig, encoder: DualEncoder, progress: bool) -> PeakPatchConfig:
    if config.is_resolved:
        return config.resolved(encoder)
    diagnosis = None
    if config.peak is None:
        from clipmend.negation.diagnosis import diagnose

        diagnosis = diagnose(encoder, probes=False, bootstrap=0, progress=progress)
    return config.resolved(encoder, diagnosis)


class _Run:
    """Everything one fit holds: sources, networks, optimiser, the best state so far."""

    def __init__(
        self,
        encoder: DualEncoder,
        data: NegationData | str | os.PathLike[str] | None,
        config: PeakPatchConfig,
        nouns: Sequence[str] | int | None,
        image_embeddings: Tensor | None,
        directory: Path | None,
        device: str | torch.device | None,
        progress: bool,
    ) -> None:
        self.encoder, self.config, self.directory, self.progress = encoder, config, directory, progress
        self.device = torch.device(device) if device is not None else encoder.device
        self.started = time.monotonic()
        self.sources, self.validations = Preparation(encoder, config, directory, progress).sources(data, nouns, image_embeddings)
        self.digest = digest_of(self.sources)
        # Where there are images, the score is corrected for them alone: what stands in for an image of the noun sets has other,
        # easier cosines.
        self.asked = next((name for name in ("images", "text") if name in self.sources and self.sources[name].questions), None)
        torch.manual_seed(config.seed)
        assert config.text_width is not None
        assert config.embed_dim is not None
        assert config.scn_layers is not None
        self.ecn = EmbeddingCorrectionNetwork(
            config.text_width, config.embed_dim, config.hidden, config.heads, config.dropout,
            config.use_anchor, config.use_pool, config.eos_only, config.use_direct,
        ).to(self.device)  # fmt: skip
        self.scn: ScoreCorrectionNetwork | None = None
        if config.use_scn:
            self.scn = ScoreCorrectionNetwork(config.embed_dim, len(config.scn_layers), config.context, config.bound).to(
                self.device
            )
        images_total = max(len(s.chosen) for s in self.sources.values())
        self.steps = math.ceil(config.epochs * images_total / config.batch_size) if config.epochs else config.steps
        self.eval_every = config.eval_every or max(1, self.steps // 10)

    # ---- one step ---------------------------------------------------------------------------------------------------------

    def correct(self, source: Source, rows: np.ndarray) -> tuple[Tensor, dict[str, Tensor]]:
        """``[M, D]`` corrected unit embeddings of captions, and their features.

        Among these ``"free"``, ``[M]``: the squared length of what the MLP adds by itself, beside the direct paths; 0 without any.
        """
        features = source.texts.batch(rows, device=self.device)
        embedding = features["embedding"]
        free, direct = self.ecn.parts(
            features["peak_tokens"], features["mask"], features["peak_eos"], features["anchor_eos"], embedding
        )
        features["free"] = torch.zeros(len(rows), device=self.device)
        if direct is not None:
            features["free"] = (self.ecn.log_alpha.exp() * free).square().sum(-1)
        return self.ecn.combine(embedding, free if direct is None else free + direct), features

    def _contrast(self, source: Source, rng: np.random.Generator, size: int, guided: float) -> tuple[Tensor, Tensor]:
        """Truthful loss with ``guided`` times the guidance, and preservation loss, of a sampled batch."""
        batch = source.batch(rng, size)
        corrected, features = self.correct(source, batch.captions)
        config = self.config
        assert config.logit_scale is not None
        plain = torch.from_numpy(batch.plain).to(self.device)
        own = batch.own.to(self.device)
        contrasted = corrected
        if source is self.sources.get("text"):
            # A stand-in is itself made of a plain caption: the contrast could only move plain captions away. They stay rivals.
            own = own.masked_fill(plain, -1)
            contrasted = torch.where(plain[:, None], corrected.detach(), corrected)
        loss = config.contrast_weight * truthful_loss(
            batch.images.to(self.device), contrasted, batch.truth.to(self.device), own, config.logit_scale
        )
        loss = loss + config.free_penalty * features["free"].mean()
        if source.targets is not None and guided > 0:
            targets = source.targets[batch.captions].to(self.device)[~plain]
            loss = loss + guided * config.guidance_weight * preservation_loss(corrected[~plain], targets)
        return loss, preservation_loss(corrected[plain], features["embedding"][plain])

    def _worlds(self, source: Source, rng: np.random.Generator, size: int, guided: float) -> tuple[Tensor, Tensor]:
        """:meth:`_contrast`; of data in groups, averaged over as many of them as make up ``size`` images."""
        if source.groups is None:
            return self._contrast(source, rng, size, guided)
        count = max(1, round(size * len(source.groups) / max(len(source.chosen), 1)))
        parts = [self._contrast(source, rng, math.ceil(size / count), guided) for _ in range(count)]
        return torch.stack([loss for loss, _ in parts]).mean(), torch.stack([kept for _, kept in parts]).mean()

    def _questions(self, source: Source, rng: np.random.Generator, size: int) -> Tensor:
        assert self.scn is not None
        images, options, answers = source.question_batch(rng, size)
        corrected, features = self.correct(source, options.reshape(-1))
        contexts = torch.cat([features["scn"][:, :-1], corrected[:, None]], 1)  # [Q*O, L, D]
        images = images.to(self.device)
        if self.config.image_noise > 0:  # a few thousand images would be learned by heart
            scale = self.config.image_noise / math.sqrt(images.shape[1])
            images = F.normalize(images + scale * torch.randn_like(images), dim=-1)
        repeated = images.repeat_interleave(options.shape[1], 0)
        corrections = self.scn.correction(repeated, contexts)
        scores = (repeated * corrected).sum(-1) + corrections
        return question_loss(
            scores.view(options.shape), answers.to(self.device), corrections.view(options.shape),
            self.config.scn_temperature, self.config.correction_penalty,
        )  # fmt: skip

    def _pairs(self, source: Source, rng: np.random.Generator, size: int) -> Tensor:
        """Text-only pairs: the stand-in of a noun set is nearer to what is true of it than to what is false."""
        rows = source.paired_rows(rng, size)
        corrected, _ = self.correct(source, np.concatenate([rows.true, rows.false]))
        true, false = corrected.split(len(rows.true))
        return pair_loss(source.images[rows.images].to(self.device), true, false, self.config.text_only_scale)

    def losses(self, rng: np.random.Generator, progress: float = 0.0) -> dict[str, Tensor]:
        """The weighted terms of one step; ``progress`` is the share of the training that is done."""
        config, terms = self.config, {}
        main = self.sources.get("images")
        # Guidance fades, so that the end belongs to the contrastive term.
        guided = 1.0 if config.guidance_until is None else max(config.guidance_floor, 1 - progress / config.guidance_until)
        if config.objective == "released":
            source = main or self.sources["text"]
            triples = source.triples(rng, config.batch_size)
            corrected, _ = self.correct(source, np.concatenate([triples.originals, triples.negated]))
            originals, negated = corrected.split(len(triples.originals))
            assert config.logit_scale is not None
            terms["ecn"] = released_loss(triples.images.to(self.device), originals, negated, config.logit_scale)
        else:
            if main is not None:
                terms["ecn"], preserved = self._worlds(main, rng, config.batch_size, guided)
                terms["preserve"] = config.preservation_weight * preserved
            if "text" in self.sources:
                weight = config.text_only_weight if main is not None else 1.0
                size = config.text_only_batch if main is not None else config.batch_size
                loss, preserved = self._worlds(self.sources["text"], rng, size, guided)
                pairs = self._pairs(self.sources["text"], rng, size)
                terms["text"] = weight * (loss + pairs)
                terms["preserve"] = (
                    terms.get("preserve", torch.zeros((), device=self.device)) + config.preservation_weight * preserved
                )
        if self.scn is not None and self.asked is not None:
            terms["scn"] = config.scn_weight * self._questions(self.sources[self.asked], rng, config.question_batch)
        return terms

    def pretrain_loss(self, rng: np.random.Generator) -> dict[str, Tensor]:
        """Regress the correction of a negated caption onto ``normalize(original) - normalize(negated)``: MSE + (1 - cos)."""
        source = self.sources.get("images") or self.sources["text"]
        triples = source.triples(rng, self.config.batch_size)
        features = source.texts.batch(triples.negated, device=self.device)
        originals = source.texts.batch(triples.originals, device=self.device)["embedding"]
        target = originals - features["embedding"]
        delta = self.ecn.delta(
            features["peak_tokens"], features["mask"], features["peak_eos"], features["anchor_eos"], features["embedding"]
        )
        return {"pretrain": F.mse_loss(delta, target) + (1 - F.cosine_similarity(delta, target, dim=-1)).mean()}

    # ---- the loop ---------------------------------------------------------------------------------------------------------

    def train(self, on_validation: Callable[[int, dict[str, float]], None] | None) -> PeakPatch:
        config = self.config
        total = config.pretrain_steps + self.steps
        optimizer = torch.optim.AdamW(self._groups(), lr=config.ecn_learning_rate)
        state = self._resume(optimizer)
        with training_bar("training", total, self.progress, start=state["step"]) as show:
            for step in range(state["step"], total):
                # A step's chance depends on nothing but the step, so that a resumed run repeats an uninterrupted one.
                rng = np.random.default_rng((config.seed, 2, step))
                torch.manual_seed(int(rng.integers(2**62)))
                self._set_rates(optimizer, step)
                self._train_mode(True)
                terms = self._step_losses(rng, step)
                loss = torch.stack(list(terms.values())).sum()
                if not torch.isfinite(loss):
                    raise ValueError(
                        f"the loss is {loss.item()} at step {step + 1}; try a lower learning rate than {config.ecn_learning_rate}"
                    )
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], config.grad_clip)
                optimizer.step()
                show(step + 1, {name: value.item() for name, value in terms.items()})
                state["step"] = step + 1
                if step + 1 == total or (step + 1 > config.pretrain_steps and (step + 1) % self.eval_every == 0):
                    metrics = self.validate()
                    state["history"].append({"step": step + 1, **metrics})
                    # The latest state that is not clearly worse than the best: the rate falls to zero, so that later states are
                    # steadier, and the best of several equal ones is the luckiest.
                    score = metrics.get("score", 0.0)
                    if score >= state["best_score"] - metrics.get("error", 0.0):
                        state["best"], state["best_step"] = deepcopy(self._weights()), step + 1
                    state["best_score"] = max(state["best_score"], score)
                    self._checkpoint(optimizer, state)
                    if on_validation is not None:
                        on_validation(step + 1, metrics)
        self.ecn.load_state_dict(state["best"]["ecn"])
        if self.scn is not None:
            self.scn.load_state_dict(state["best"]["scn"])
        self._train_mode(False)
        self._bound_scn()
        return self._patch(state)

    def _bound_scn(self) -> None:
        """Of the bound and its halves, quarters ... down to a sixteenth, keep the one that answers most held-out questions.

        Questions about images count where there are any. The released objective keeps the published bound.
        """
        if self.scn is None or self.asked is None or self.config.objective == "released":
            return
        asked = self.validations[self.asked]
        if not asked.asks:
            return
        with torch.inference_mode():
            bounds = [self.config.bound / 2**halvings for halvings in range(5)]
            tried = asked.choice_by_bound(partial(self.correct, asked.source), self.scn, bounds)
        best = max(tried, key=lambda bound: (tried[bound], bound))
        self.scn.bound = best
        self.config = replace(self.config, bound=best)

    def validate(self) -> dict[str, float]:
        """Metrics on held-out images and noun worlds; ``score`` and its standard ``error`` are what the state is chosen by.

        Where too little is held out to measure anything there is no score, and the latest state is as good as any.
        """
        self._train_mode(False)
        metrics: dict[str, float] = {}
        with torch.inference_mode():
            for name, validation in self.validations.items():
                scn = self.scn if name == self.asked else None
                for key, value in validation.measure(partial(self.correct, validation.source), scn).items():
                    metrics[f"{name}/{key}"] = value
        scores = [value for key, value in metrics.items() if key.endswith("/score")]
        errors = [value for key, value in metrics.items() if key.endswith("/error")]
        if scores:
            metrics["score"], metrics["error"] = float(np.mean(scores)), float(np.linalg.norm(errors)) / len(errors)
        return metrics

    def _step_losses(self, rng: np.random.Generator, step: int) -> dict[str, Tensor]:
        if step < self.config.pretrain_steps:
            return self.pretrain_loss(rng)
        return self.losses(rng, (step - self.config.pretrain_steps) / self.steps)

    def _groups(self) -> list[dict[str, Any]]:
        groups = []
        for network, rate in ((self.ecn, self.config.ecn_learning_rate), (self.scn, self.config.scn_learning_rate)):
            if network is None:
                continue
            for decays in (True, False):
                parameters = [p for p in network.parameters() if (p.ndim > 1) == decays]
                groups.append({"params": parameters, "rate": rate, "weight_decay": self.config.weight_decay if decays else 0.0})
        return groups

    def _set_rates(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        config = self.config
        if step < config.pretrain_steps:
            for group in optimizer.param_groups:
                group["lr"] = 1e-3
            return
        step -= config.pretrain_steps
        warm = min(1.0, (step + 1) / max(1, min(config.warmup_steps, self.steps // 4)))
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * warm * 0.5 * (1 + math.cos(math.pi * step / self.steps))

    def _train_mode(self, on: bool) -> None:
        self.ecn.train(on)
        if self.scn is not None:
            self.scn.train(on)

    def _weights(self) -> dict[str, Any]:
        weights = {"ecn": self.ecn.state_dict()}
        if self.scn is not None:
            weights["scn"] = self.scn.state_dict()
        return weights

    def _checkpoint(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        if self.directory is not None:
            saved = {**state, "weights": self._weights(), "optimizer": optimizer.state_dict(), "identity": self._identity()}
            save_checkpoint(self.directory / CHECKPOINT, saved)

    def _identity(self) -> str:
        return json.dumps({**self.config.to_dict(), "data": self.digest, "steps": self.steps}, sort_keys=True)

    def _resume(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        fresh: dict[str, Any] = {"step": 0, "best": self._weights(), "best_score": -math.inf, "best_step": 0, "history": []}
        path = None if self.directory is None else self.directory / CHECKPOINT
        if path is None or not path.exists():
            return fresh
        saved = load_checkpoint(path, self._identity(), {*fresh, "weights", "optimizer"}, self.device)
        weights = saved.pop("weights")
        self.ecn.load_state_dict(weights["ecn"])
        if self.scn is not None:
            self.scn.load_state_dict(weights["scn"])
        optimizer.load_state_dict(saved.pop("optimizer"))
        return saved

    def _patch(self, state: dict[str, Any]) -> PeakPatch:
        best: dict[str, Any] = next((entry for entry in state["history"] if entry["step"] == state["best_step"]), {})
        metrics = {
            "validation": {k: v for k, v in best.items() if k != "step"},
            "best_step": state["best_step"],
            "steps": self.steps,
            "images": len(self.sources["images"].chosen) if "images" in self.sources else 0,
            "text_only_sets": len(self.sources["text"].chosen) if "text" in self.sources else 0,
            "seconds": round(time.monotonic() - self.started, 1),
            "history": state["history"],
        }
        return PeakPatch(
            config=self.config, ecn=self.ecn.cpu(), scn=None if self.scn is None else self.scn.cpu(), backbone=self.encoder.name,
            fingerprint=self.encoder.fingerprint, metrics=metrics, training_data=self.digest,
        )  # fmt: skip
