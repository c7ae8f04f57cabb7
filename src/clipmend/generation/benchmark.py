"""``clipmend benchmark generation``: the negation score of a pipeline of diffusers, plain, with patches, with negative prompts.

Every image and every answer of the judge is kept as soon as it is there, under a digest of all that decides it: the same command
goes on where a killed one stopped, and one with another patch or another judge makes what is new.
"""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clipmend.backbones.fingerprint import digest_facts, digest_weights, named_weights
from clipmend.backbones.progress import track
from clipmend.benchmark.methods import patch_digest
from clipmend.data.images import ImageError, open_image
from clipmend.data.naming import noun_of
from clipmend.data.records import Caption
from clipmend.evaluation.judge_identity import judge_identity
from clipmend.evaluation.judged import Judge
from clipmend.generation.attach import patch_place, places
from clipmend.generation.benchmark_report import GenerationReport, Row, write_generation_report
from clipmend.generation.judges import load_image_judge
from clipmend.negation.attach_twin import Override
from clipmend.negation.patch import PeakPatch
from clipmend.search.store import write_atomically

__all__ = ["load_pipeline", "run_generation"]

Say = Callable[[str], None]


@dataclass
class _Method:
    """One way to draw: its column of the table, what it is made of, and how the pipeline is changed for it."""

    label: str
    facts: dict[str, Any]
    encoder: nn.Module | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    against: bool = False  # what is excluded goes into negative_prompt

    def asks(self, prompt: Caption) -> tuple[str, str | None]:
        """Prompt and negative prompt for the pipeline."""
        if not self.against or not prompt.denies:
            return prompt.text, None
        wanted = " and ".join(noun_of(thing).indefinite for thing in prompt.asserts)
        return (f"a photo of {wanted}" if wanted else "a photo"), ", ".join(prompt.denies)

    @contextmanager
    def on(self) -> Iterator[None]:
        """The patch on its text encoder, whatever the encoder was cast to since it was checked."""
        if self.encoder is None:
            yield
            return
        vars(self.encoder).update(self.overrides)
        try:
            yield
        finally:
            for name in self.overrides:
                del vars(self.encoder)[name]


def load_pipeline(name: str) -> Any:
    """A pipeline of diffusers that draws from text, in float32 on the CPU.

    Args:
        name: a folder or hub id. Of Kandinsky 2.2 the decoder's, which brings its prior.

    Raises:
        ImportError: diffusers is missing.
        OSError: no such pipeline, or the hub cannot be reached.
    """
    try:
        import diffusers
    except ImportError as error:
        raise ImportError("pipelines need diffusers: pip install 'clipmend[generate]'") from error
    try:
        return diffusers.AutoPipelineForText2Image.from_pretrained(name)
    except ValueError as error:  # of a kind that it does not list, such as unCLIP
        if "AutoPipeline" not in str(error):
            raise
        return diffusers.DiffusionPipeline.from_pretrained(name)


def run_generation(
    pipeline: Any,
    patches: Sequence[str | Path] | Mapping[str, PeakPatch],
    *,
    prompts: Sequence[Caption],
    judge: str | Judge,
    out: str | Path,
    seeds: Sequence[int] = (0, 1, 2),
    settings: Mapping[str, Any] | None = None,
    negative_prompt: bool = True,
    strength: float = 1.0,
    gate: bool | None = None,
    threshold: float = 0.5,
    allow_mismatch: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str | None = None,
    say: Say | None = None,
    progress: bool = False,
) -> GenerationReport:
    """Draw every prompt with every seed: plain, with each patch, and with what is excluded as negative prompt; judge, and score.

    All methods start from the same noise. Patches are checked before anything is drawn.

    Args:
        pipeline: a folder or hub id for :func:`load_pipeline`, or a pipeline in float32.
        patches: patches by name; or ready ones, by the name they are to have.
        prompts: see :func:`~clipmend.generation.benchmark_prompts.read_prompts`.
        judge: see :func:`~clipmend.generation.judges.load_image_judge`; or a judge, with an attribute ``fingerprint`` if its
            answers are to be told from another's.
        out: folder for ``table.md``, ``table.csv``, ``results.json``, ``sheet.png``, and what is kept: ``images/``, ``answers/``.
        seeds: of the noise, one image each.
        settings: further arguments of the pipeline's call, such as ``num_inference_steps``.
        negative_prompt: also measure negative prompts, where the pipeline takes them.
        strength, gate, allow_mismatch: see :meth:`PeakPatch.attach`.
        threshold: a thing is there from this probability on.
        dtype: what the pipeline is cast to for drawing.
        device: where; default: the best that is there.
        say: called with a line for what is going on.
        progress: show progress bars on a terminal.

    Raises:
        ValueError: no prompts, one that cannot be scored, no seeds, a threshold outside 0..1, a pipeline that a patch cannot go
            on or that gives no images, a setting that it does not take, a patch that does not fit; what pipeline or judge fail at.
        OSError, ImportError: see :func:`load_pipeline`.
    """
    if not prompts:
        raise ValueError("no prompts to draw")
    for number, prompt in enumerate(prompts, 1):
        if not (prompt.asserts or prompt.denies) or set(prompt.asserts) & set(prompt.denies):
            raise ValueError(
                f"prompt {number} ({prompt.text!r}) asks for nothing and rules out nothing, or asks for what it rules out: it "
                "cannot be scored"
            )
    if not 0 < threshold <= 1:  # before hours of drawing
        raise ValueError(f"the threshold is a probability, above 0 and at most 1, not {threshold:g}")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be different ones, one at least, not {list(seeds)}")
    target = Path(out)
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(f"{target} is a file; --out wants a folder")
    tell = say or (lambda line: None)
    judging = load_image_judge(judge, device) if isinstance(judge, str) else judge
    pipe = load_pipeline(str(pipeline)) if isinstance(pipeline, (str, Path)) else pipeline
    own = dict(settings or {})
    _check_call(pipe, own)
    methods = _methods(pipe, patches, own, negative_prompt, strength, gate, allow_mismatch, dtype, tell)
    from clipmend.backbones.loading import _device

    pipe.to(_device(device))
    if dtype != torch.float32:
        pipe.to(dtype)
    pipe.set_progress_bar_config(disable=True)
    images: dict[str, dict[tuple[int, int], Path]] = {}
    for method in methods:
        images[method.label] = _draw(pipe, method, prompts, seeds, own, target / "images", progress)
        tell(f"{method.label}: {len(images[method.label])} images")
    name = judge if isinstance(judge, str) else type(judge).__name__
    identity = judge_identity(name, judging)
    answers = _Answers(target / "answers" / f"{digest_facts(identity)[:16]}.jsonl", target, judging)
    rows = [
        Row(method.label, place, seed, path, answers.of(path, prompts[place]))
        for method in methods
        for (place, seed), path in track(
            images[method.label].items(), len(images[method.label]), f"judging {method.label}", progress
        )
    ]
    report = GenerationReport(
        list(prompts), rows, [method.label for method in methods],
        threshold=threshold, judge=name, pipeline=f"{type(pipe).__name__}, {pipe.config.get('_name_or_path') or 'a live one'}",
        settings={**own, "seeds": list(seeds), "dtype": str(dtype).removeprefix("torch.")},
        blank={label: sum(map(_is_blank, made.values())) for label, made in images.items()},
    )  # fmt: skip
    write_generation_report(report, target)
    return report


def _check_call(pipe: Any, settings: Mapping[str, Any]) -> None:
    places(pipe)  # says what would work where this one cannot be mended
    taken = inspect.signature(type(pipe).__call__).parameters
    unknown = [name for name in settings if name not in taken]
    reserved = [
        name for name in ("prompt", "negative_prompt", "generator", "output_type", "num_images_per_prompt") if name in settings
    ]
    if unknown or reserved:
        raise ValueError(
            f"{type(pipe).__name__} takes no {', '.join(unknown)}; it takes {', '.join(list(taken)[2:])}"
            if unknown
            else f"{', '.join(reserved)} is set by the benchmark itself"
        )
    if "Prior" in type(pipe).__name__:
        raise ValueError(
            f"{type(pipe).__name__} gives image embeddings and no images; name the pipeline that draws from them, which brings its "
            "prior (kandinsky-community/kandinsky-2-2-decoder)"
        )


def _methods(
    pipe: Any,
    patches: Sequence[str | Path] | Mapping[str, PeakPatch],
    settings: Mapping[str, Any],
    negative_prompt: bool,
    strength: float,
    gate: bool | None,
    allow_mismatch: bool,
    dtype: torch.dtype,
    tell: Say,
) -> list[_Method]:
    loaded = dict(patches) if isinstance(patches, Mapping) else {str(name): PeakPatch.from_pretrained(name) for name in patches}
    weights = {name: digest_weights(named_weights(part)) for name, part in pipe.components.items() if isinstance(part, nn.Module)}
    schedulers = {
        name: json.loads(json.dumps(dict(part.config), default=str))
        for name, part in pipe.components.items()
        if "scheduler" in name
    }
    base = {
        "pipeline": type(pipe).__name__, "weights": weights, "schedulers": schedulers,
        "settings": json.loads(json.dumps(dict(settings), default=str)), "dtype": str(dtype),
    }  # fmt: skip
    methods = [_Method("plain", base)]
    for name, patch in loaded.items():
        place = patch_place(patch, pipe, None, allow_mismatch)
        patch.attach(pipe, strength=strength, gate=gate, allow_mismatch=allow_mismatch)
        overrides = {key: value for key, value in vars(place.encoder).items() if isinstance(value, Override)}
        patch.detach(pipe)
        shown = f"+ {name}" if strength == 1 else f"+ {name} (strength {strength:g})"
        facts = {**base, "patch": patch_digest(patch), "strength": strength, "gate": patch.config.gate if gate is None else gate}
        methods.append(_Method(shown, facts, place.encoder, overrides))
    if negative_prompt and "negative_prompt" in inspect.signature(type(pipe).__call__).parameters:
        methods.append(_Method("negative prompt", base, against=True))
    elif negative_prompt:
        tell(f"note: {type(pipe).__name__} takes no negative_prompt: not measured")
    return methods


def _draw(
    pipe: Any,
    method: _Method,
    prompts: Sequence[Caption],
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    folder: Path,
    progress: bool,
) -> dict[tuple[int, int], Path]:
    """Files of all images, by prompt and seed; those that are there are not drawn again."""
    key = digest_facts(method.facts)[:16]
    found: dict[tuple[int, int], Path] = {}
    jobs = [(place, seed) for place in range(len(prompts)) for seed in seeds]
    with method.on():
        for place, seed in track(jobs, len(jobs), f"drawing {method.label}", progress):
            text, against = method.asks(prompts[place])
            name = digest_facts({"prompt": text, "negative_prompt": against, "seed": seed})[:24]
            path = found[place, seed] = folder / key / f"{name}.png"
            if not _is_whole(path):
                more = {} if against is None else {"negative_prompt": against}
                try:
                    image = pipe(text, generator=torch.Generator("cpu").manual_seed(seed), **settings, **more).images[0]
                except Exception as error:
                    raise ValueError(
                        f"{type(pipe).__name__} failed at prompt {place + 1} ({text!r}, seed {seed}, {method.label}): "
                        f"{type(error).__name__}: {error}. What is drawn is kept; the same command goes on from there"
                    ) from error
                data = io.BytesIO()
                image.save(data, "PNG")
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, data.getvalue())
    return found


def _is_whole(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        open_image(path)
    except ImageError:
        return False
    return True


def _is_blank(path: Path) -> bool:
    """Whether an image is of one colour."""
    return all(low == high for low, high in open_image(path).convert("RGB").getextrema())  # type: ignore[misc]  # a pair a band


class _Answers:
    """What a judge said, a line for each image and thing; read again by the next run."""

    def __init__(self, path: Path, root: Path, judge: Judge) -> None:
        self.path, self.root, self.judge = path, root, judge
        self._kept: dict[tuple[str, str], float] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                row = json.loads(line)
                self._kept[row["image"], row["thing"]] = float("nan") if row["p"] is None else float(row["p"])
            except (ValueError, KeyError, TypeError):  # the last line of a killed run
                continue

    def of(self, image: Path, prompt: Caption) -> dict[str, float]:
        """Probability of each thing that the prompt speaks of."""
        name = image.relative_to(self.root).as_posix()
        asked = [thing for thing in (*prompt.asserts, *prompt.denies) if (name, thing) not in self._kept]
        if asked:
            try:
                said = [float(value) for value in self.judge.judge(image, asked)]
            except Exception as error:
                raise ValueError(
                    f"the judge failed at {image}, asked for {', '.join(asked)}: {type(error).__name__}: {error}. What it said "
                    "before is kept"
                ) from error
            if len(said) != len(asked) or any(value < 0 or value > 1 for value in said):
                raise ValueError(f"the judge must give one probability a thing, 0 to 1 or NaN; of {asked} it gave {said}")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                if file.tell() and not self._whole():
                    file.write("\n")
                for thing, value in zip(asked, said, strict=True):
                    self._kept[name, thing] = value
                    file.write(json.dumps({"image": name, "thing": thing, "p": None if value != value else value}) + "\n")
        return {thing: self._kept[name, thing] for thing in (*prompt.asserts, *prompt.denies)}

    def _whole(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"
