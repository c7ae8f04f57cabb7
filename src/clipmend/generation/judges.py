"""Judges of generated images from transformers: models that answer questions about pictures, and detectors.

Both are a :class:`~clipmend.evaluation.judged.Judge`. A judge makes mistakes, on generated images more than on photographs; look at
a sample of what it said before trusting a score.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from clipmend.backbones.fingerprint import digest_facts, digest_weights, named_weights
from clipmend.data.images import open_image
from clipmend.data.naming import noun_of
from clipmend.evaluation.judged import Judge, load_judge
from clipmend.evaluation.rivals.parser import singular

__all__ = ["DetectorJudge", "QuestionJudge", "load_image_judge"]

QUESTION = "Is there {a} in the image? Answer yes or no."
SHORT_QUESTION = "is there {a} in the image?"
"""For models that only know questions: an instruction is no part of them."""
_ANSWERS = {"yes": ("yes", "Yes", " yes", " Yes", "YES"), "no": ("no", "No", " no", " No", "NO")}
_OPEN = {"owlvit": 0.1, "owlv2": 0.1, "grounding-dino": 0.25, "mm-grounding-dino": 0.25}
"""Detectors that look for what they are told, and from which score on transformers takes a box for one."""


class QuestionJudge:
    """Asks a model "is there a cat in the image?" and gives its probability of yes, of yes and no together.

    Args:
        model: of transformers: a classifier of answers (``ViltForQuestionAnswering``), a generator of them
            (``BlipForQuestionAnswering``), or a chat model that takes images (LLaVA, SmolVLM, Qwen-VL, ...).
        processor: its processor.
        name: what the judge calls itself; default: the model's own.
        question: with ``{a}`` for the thing and its article ("a cat") or ``{thing}`` without; default: one that suits the model.

    Raises:
        ValueError: a model of none of these kinds, or one that knows no "yes" or no "no".
    """

    def __init__(self, model: Any, processor: Any, *, name: str = "", question: str | None = None) -> None:
        self.model, self.processor = model.eval(), processor
        self.kind: Literal["labels", "answer", "chat"] = _question_kind(model, processor)
        self.question = question or (QUESTION if self.kind == "chat" else SHORT_QUESTION)
        self._yes, self._no = (self._ids(answer) for answer in ("yes", "no"))
        self.fingerprint = f"{_said(model, name)}, {digest_facts({'question': self.question})[:12]}"

    def _ids(self, answer: str) -> list[int]:
        if self.kind == "labels":
            found = [number for number, label in _labels(self.model).items() if label == answer]
        else:
            tokenizer = self.processor.tokenizer
            pieces = [tokenizer(text, add_special_tokens=False).input_ids for text in _ANSWERS[answer]]
            found = sorted({ids[0] for ids in pieces if len(ids) == 1 and ids[0] != tokenizer.unk_token_id})
        if not found:
            raise ValueError(f"{type(self.model).__name__} cannot answer {answer!r}: it has no such label or token")
        return found

    def judge(self, image_path: Path, things: Sequence[str]) -> list[float]:
        """Probability that each of ``things`` is in the image."""
        image = open_image(image_path)
        return [self._probability(image, self.question.format(a=_some(thing), thing=thing)) for thing in things]

    @torch.no_grad()
    def _probability(self, image: Any, question: str) -> float:
        device = next(self.model.parameters()).device
        if self.kind == "labels":
            logits = self.model(**self._moved(self.processor(images=image, text=question, return_tensors="pt"), device)).logits[0]
        else:
            if self.kind == "chat":
                content = [{"type": "image", "image": image}, {"type": "text", "text": question}]
                inputs = self.processor.apply_chat_template(
                    [{"role": "user", "content": content}],
                    add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
                )  # fmt: skip
            else:
                inputs = self.processor(images=image, text=question, return_tensors="pt")
            made = self.model.generate(
                **self._moved(inputs, device),
                max_new_tokens=1, do_sample=False, output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip
            logits = made.logits[0][0]
        logits = logits.float()
        return torch.sigmoid(logits[self._yes].logsumexp(0) - logits[self._no].logsumexp(0)).item()

    def _moved(self, inputs: Any, device: torch.device) -> dict[str, Any]:
        return _moved(inputs, device, next(self.model.parameters()).dtype)


class DetectorJudge:
    """Looks for things with a detector: the best box of each says how likely it is there.

    A detector's scores are no probabilities: each has its own score from which a box counts. Scores are stretched so that this one
    is 0.5.

    Args:
        model: of transformers: one that looks for any text (OWL-ViT, OWLv2, Grounding DINO), or one of fixed classes (DETR and
            others), which cannot tell of anything else, nor of attributes.
        processor: its processor, or image processor.
        name: what the judge calls itself; default: the model's own.
        threshold: the score from which a box counts; default: the library's own for the model.

    Raises:
        ValueError: a model that is no such detector, or a threshold outside 0..1.
    """

    def __init__(self, model: Any, processor: Any, *, name: str = "", threshold: float | None = None) -> None:
        kind = str(model.config.model_type)
        self.model, self.processor = model.eval(), processor
        self.open = kind in _OPEN
        if not self.open and not type(model).__name__.endswith("ForObjectDetection"):
            raise ValueError(f"{type(model).__name__} is no detector; give one of {', '.join(_OPEN)}, or of fixed classes (detr)")
        if not self.open and hasattr(model, "get_text_features"):
            raise ValueError(f"how {type(model).__name__} is told what to look for is not known; use {', '.join(_OPEN)}")
        self.threshold = _OPEN.get(kind, 0.5) if threshold is None else threshold
        if not 0 < self.threshold < 1:
            raise ValueError(f"a threshold of scores lies between 0 and 1, not {self.threshold}")
        self._labels = {label: number for number, label in _labels(model).items()}
        self.fingerprint = f"{_said(model, name)}, from {self.threshold:g}"

    def judge(self, image_path: Path, things: Sequence[str]) -> list[float]:
        """How likely each of ``things`` is in the image; NaN: not one of the detector's classes."""
        image = open_image(image_path)
        if self.open:
            return [self._stretched(self._best(image, thing)) for thing in things]
        scores = self._classes(image)
        places = [self._labels.get(thing.lower(), self._labels.get(singular(thing.lower()))) for thing in things]
        return [float("nan") if place is None else self._stretched(float(scores[place])) for place in places]

    @torch.no_grad()
    def _best(self, image: Any, thing: str) -> float:
        grounded = "grounding" in str(self.model.config.model_type)
        text: Any = f"{_some(thing)}." if grounded else [[f"a photo of {_some(thing)}"]]
        logits = self.model(**self._moved(self.processor(images=image, text=text, return_tensors="pt"))).logits
        return torch.sigmoid(logits.float()).max().item()

    @torch.no_grad()
    def _classes(self, image: Any) -> Tensor:
        """``[C]`` best score of each class."""
        logits = self.model(**self._moved(self.processor(images=image, return_tensors="pt"))).logits.float()[0]
        if logits.shape[-1] == len(self._labels) + 1:  # the last one stands for no object (DETR)
            return logits.softmax(-1)[:, :-1].amax(0)
        return logits.sigmoid().amax(0)

    def _stretched(self, score: float) -> float:
        half = self.threshold
        return 0.5 * score / half if score < half else 0.5 + 0.5 * (score - half) / (1 - half)

    def _moved(self, inputs: Any) -> dict[str, Any]:
        parameter = next(self.model.parameters())
        return _moved(inputs, parameter.device, parameter.dtype)


def load_image_judge(name: str, device: str | None = None) -> Judge:
    """A judge by name.

    Args:
        name: ``vqa:ID`` or ``detector:ID``, a folder or a hub id of a model for :class:`QuestionJudge` or :class:`DetectorJudge`;
            anything else as for :func:`~clipmend.evaluation.judged.load_judge` (``module:object``, a table).
        device: where to put a model; default: the best that is there.

    Raises:
        OSError: no such model, or the hub cannot be reached.
        ValueError: a model that cannot judge.
    """
    kind, _, source = name.partition(":")
    if kind not in ("vqa", "detector") or not source:
        return load_judge(name)
    import transformers as library

    from clipmend.backbones.loading import _device

    where = _device(device)
    config = library.AutoConfig.from_pretrained(source)
    processor = library.AutoProcessor.from_pretrained(source)
    autos = ["AutoModelForVisualQuestionAnswering", "AutoModelForImageTextToText"]
    if kind == "detector":
        autos = ["AutoModelForZeroShotObjectDetection", "AutoModelForObjectDetection"]
    auto = next((found for auto in autos if type(config) in (found := getattr(library, auto))._model_mapping), None)
    if auto is None:
        raise ValueError(f"{source} is of type {config.model_type!r}, of which transformers has no model for {kind}")
    model = auto.from_pretrained(source).to(where)
    return QuestionJudge(model, processor, name=source) if kind == "vqa" else DetectorJudge(model, processor, name=source)


def _question_kind(model: Any, processor: Any) -> Literal["labels", "answer", "chat"]:
    if {"yes", "no"} <= set(_labels(model).values()):
        return "labels"
    if not hasattr(model, "generate"):
        raise ValueError(f"{type(model).__name__} answers no questions: it has neither labels yes and no, nor a method generate")
    return "chat" if getattr(processor, "chat_template", None) else "answer"


def _labels(model: Any) -> dict[int, str]:
    return {int(number): str(label).strip().lower() for number, label in (getattr(model.config, "id2label", None) or {}).items()}


def _some(thing: str) -> str:
    return noun_of(thing).indefinite


def _said(model: Any, name: str) -> str:
    """Name and revision of a model; of one without revision the weights."""
    shown = name or str(getattr(model, "name_or_path", "") or type(model).__name__)
    revision = getattr(model.config, "_commit_hash", None)
    return f"{shown}, {revision}" if revision else f"{shown}, weights {digest_weights(named_weights(model))[:16]}"


def _moved(inputs: Any, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    return {
        key: value.to(device, dtype if value.is_floating_point() else None) if isinstance(value, Tensor) else value
        for key, value in inputs.items()
    }
