"""The reproduction itself: data, features, fits, evaluations, each kept, so that the same command goes on after a kill."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from clipmend.backbones.base import DualEncoder
from clipmend.data.annotated import Denials
from clipmend.data.folder import negation_data_from_folder
from clipmend.data.images import find_image
from clipmend.data.negate import negate
from clipmend.data.records import NegationData
from clipmend.evaluation import evaluate_choice, evaluate_retrieval, read_choice, read_retrieval
from clipmend.evaluation.results import Result, write_json
from clipmend.negation import PeakPatch, fit
from clipmend.negation.image_features import extract_image_features
from clipmend.reproduce.inputs import Inputs
from clipmend.reproduce.published import PER_IMAGE, TABLES, configuration

__all__ = ["Options", "Reproduction", "reproduce"]

FORMAT = 1
ALONE = "ECN alone"
OBJECTIVES = ("released", "truthful")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What is to be run.

    Args:
        objectives: ``"released"``, ``"truthful"``, or both.
        limit: training images taken (default: all).
        pretrain: regress the correction first, in the released fit.
        changes: fields of the configuration that take other values, by objective.
        skip_missing: leave out missing images, counted, instead of stopping.
        seed: of data, weights and batches.
        progress: show progress bars on a terminal.
    """

    objectives: tuple[str, ...] = ("released", "truthful")
    limit: int | None = None
    pretrain: bool = True
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    skip_missing: bool = False
    seed: int = 0
    progress: bool = False

    def __post_init__(self) -> None:
        strange = [o for o in self.objectives if o not in OBJECTIVES]
        if strange or not self.objectives:
            raise ValueError(f"objectives are released and truthful, not {', '.join(strange) or 'none'}")

    @property
    def missing(self) -> Any:
        """As the evaluators and the builder take it."""
        return "skip" if self.skip_missing else "error"


@dataclass
class Reproduction:
    """What was measured.

    Args:
        folder: where everything is.
        model: name of the backbone.
        results: by row (``"backbone"``, ``"released"``, ``"released, ECN alone"``, ...) and table: what the JSON files hold.
        fits: by objective: steps, best step, seconds, images, and the configuration.
        made: what this run made, and did not find: ``"data/released"``, ``"patches/released"``, ``"results/..."``.
        notes: what was left out.
    """

    folder: Path
    model: str
    results: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    fits: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def reproduce(
    encoder: DualEncoder,
    inputs: Inputs,
    out: str | Path,
    options: Options | None = None,
    *,
    say: Say = lambda text: None,
) -> Reproduction:
    """Run every step that ``out`` does not hold yet.

    Fits may be made one after another: one of an earlier run in the same folder is measured and shown too, and not fitted again.

    Args:
        encoder: the backbone.
        inputs: from :func:`~clipmend.reproduce.inputs.find_inputs`.
        out: a new folder, or one of an earlier run with the same inputs and options (``objectives`` aside). Gets ``data/``,
            ``features/``, ``fits/`` (work of the fits), ``patches/`` and ``results/``.
        options: what is to be run.
        say: called with a line before each step.

    Raises:
        ValueError: ``out`` belongs to other inputs, options or another backbone.
        FileNotFoundError: images missing, unless they are skipped.
    """
    options = options or Options()
    out = Path(out)
    _claim(out, encoder, inputs, options)
    done = Reproduction(out, encoder.name)
    for name in inputs.absent:
        done.notes.append(f"{TABLES[name].name}.csv is not there: {TABLES[name].title} not measured")
    patches: dict[str, Path] = {}
    for objective in OBJECTIVES:  # in one order, whichever was fitted first
        if objective not in options.objectives and not _patch_is_there(out, objective):
            continue
        patches[objective] = _fitted(objective, encoder, inputs, out, options, done, say)
    vectors = {kind: _test_vectors(kind, encoder, inputs, out, options, done, say) for kind in ("coco", "voc")}
    rows: dict[str, tuple[DualEncoder, str]] = {"backbone": (encoder, encoder.fingerprint.text)}
    for objective, folder in patches.items():
        patch = PeakPatch.from_pretrained(folder)
        done.fits[objective] = {k: v for k, v in patch.metrics.items() if k in ("steps", "best_step", "seconds", "images")}
        done.fits[objective]["config"] = patch.config.to_dict()
        rows[objective] = (patch.apply(encoder), _digest((folder / "config.json").read_bytes()))
    for row, (model, weights) in rows.items():
        for name in inputs.tables:
            _measured(row, name, model, weights, vectors[TABLES[name].images], inputs, out, options, done, say)
    return done


def _claim(out: Path, encoder: DualEncoder, inputs: Inputs, options: Options) -> None:
    """Make the folder, or make sure that it is of the same run."""
    fingerprint = encoder.fingerprint
    wanted: dict[str, Any] = {
        "format": FORMAT,
        "backbone": {"text": fingerprint.text, "image": fingerprint.image},
        "inputs": inputs.identity(),
        "limit": options.limit,
        "changes": {name: dict(options.changes.get(name, {})) for name in OBJECTIVES if name in options.objectives},
        "seed": options.seed,
    }
    if "released" in options.objectives:
        wanted["pretrain"] = options.pretrain
    path = out / "run.json"
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file; a folder is needed")
    if not path.exists():
        foreign = sorted(p.name for p in out.iterdir()) if out.is_dir() else []
        if foreign:
            raise FileExistsError(f"{out} is not empty and holds no such run (but {foreign[0]!r}): give a new folder")
        write_json(path, {**wanted, "objectives": sorted(wanted["changes"]), "model": encoder.name})
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        # Of the fits that it was begun for; a folder of an older version does not say which.
        changes = {name: found["changes"].get(name, {}) for name in found.get("objectives", OBJECTIVES)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}): give a new folder") from error
    wanted = json.loads(json.dumps(wanted))
    there = {**found, "changes": {name: changes.get(name, values) for name, values in wanted["changes"].items()}}
    there.setdefault("pretrain", options.pretrain)  # a folder begun for a fit that has no pre-training
    other = [key for key in wanted if there.get(key) != wanted[key]]
    if other:
        said = "; ".join(f"{key}: {_short(there.get(key))} there, {_short(wanted[key])} now" for key in other)
        raise ValueError(f"{out} holds a run of something else ({said}): give a new folder, or repeat the command of then")
    begun = {**found, **wanted, "changes": {**changes, **wanted["changes"]}}
    begun["objectives"] = [name for name in OBJECTIVES if name in begun["changes"]]
    if begun != found:
        write_json(path, begun)


def _patch_is_there(out: Path, objective: str) -> bool:
    return (out / "patches" / objective / "config.json").is_file()


def _fitted(
    objective: str,
    encoder: DualEncoder,
    inputs: Inputs,
    out: Path,
    options: Options,
    done: Reproduction,
    say: Say,
) -> Path:
    """The folder of a fitted patch; its data and the fit where they are not there yet."""
    patch_folder, data_folder = out / "patches" / objective, out / "data" / objective
    fitted = _patch_is_there(out, objective)
    if not fitted and not (data_folder / "data.json").is_file():
        say(f"{objective}: captions and questions")
        negate(
            inputs.training(), data_folder, Denials(reading=objective, per_image=PER_IMAGE, seed=options.seed),  # type: ignore[arg-type]
            on_missing=options.missing, limit=options.limit, overwrite=True,
        )  # fmt: skip
        done.made.append(f"data/{objective}")
    notes = _notes_of(data_folder)
    done.notes += [f"{objective}: {note}" for note in notes]
    if not options.skip_missing and any("file is missing" in note for note in notes):
        raise ValueError(
            f"the captions of {objective} were made without images that were missing then ({'; '.join(notes)}): "
            "give a new folder, or go on without them (--skip-missing)"
        )
    if fitted:
        return patch_folder
    data = negation_data_from_folder(data_folder)
    if not data.questions:
        raise ValueError(f"{data_folder}: these images allow no questions; more of them, with more than one category, are needed")
    config = configuration(
        objective, encoder, _triples(data), seed=options.seed, pretrain=options.pretrain, changes=options.changes.get(objective)
    )
    say(f"{objective}: image features")
    images = extract_image_features(encoder, data.images, out / "features" / "training", progress=options.progress)
    say(f"{objective}: text features, then the fit")
    patch = fit(
        encoder, data, config, image_embeddings=torch.from_numpy(images), directory=out / "fits" / objective,
        progress=options.progress,
        on_validation=lambda step, metrics: say(f"  step {step}: " + "  ".join(f"{k} {v:.3f}" for k, v in metrics.items())),
    )  # fmt: skip
    patch.command = f"clipmend reproduce peakpatch --model {encoder.name} --objective {objective} --seed {options.seed}"
    patch.save_pretrained(patch_folder)
    done.made.append(f"patches/{objective}")
    return patch_folder


def _notes_of(folder: Path) -> list[str]:
    """What was left out when the data were made, whichever run made them."""
    try:
        notes = json.loads((folder / "data.json").read_text(encoding="utf-8")).get("notes")
    except (OSError, ValueError, AttributeError):  # deleted, once the fit was done
        return []
    return [str(note) for note in notes] if isinstance(notes, list) else []


def _triples(data: NegationData) -> int:
    """Captions that deny something and belong to an image: each has an original."""
    return sum(bool(caption.denies) and caption.image >= 0 and bool(caption.asserts) for caption in data.captions)


def _test_vectors(
    kind: str, encoder: DualEncoder, inputs: Inputs, out: Path, options: Options, done: Reproduction, say: Say
) -> dict[str, torch.Tensor]:
    """Vector of every image that a table of this kind names, by that name."""
    names: list[str] = []
    for name, path in inputs.tables.items():
        if TABLES[name].images == kind:
            found = [item.image for item in read_choice(path)] if TABLES[name].task == "choice" else read_retrieval(path).images
            names += found
    names = list(dict.fromkeys(names))
    if not names:
        return {}
    root = inputs.roots[kind]
    files = {name: find_image(name, root) for name in names}
    absent = [name for name, path in files.items() if path is None]
    if absent:
        told = f"{len(absent)} of {len(names)} test images not found under {root}: {', '.join(absent[:3])}"
        if not options.skip_missing or len(absent) == len(names):
            raise FileNotFoundError(told)
        done.notes.append(told)
    paths = list(dict.fromkeys(path for path in files.values() if path is not None))
    say(f"test images, {kind}")
    vectors = torch.from_numpy(extract_image_features(encoder, paths, out / "features" / kind, progress=options.progress))
    place = {path: k for k, path in enumerate(paths)}
    return {name: vectors[place[path]] for name, path in files.items() if path is not None}


def _measured(
    row: str,
    name: str,
    model: DualEncoder,
    weights: str,
    vectors: Mapping[str, torch.Tensor],
    inputs: Inputs,
    out: Path,
    options: Options,
    done: Reproduction,
    say: Say,
) -> None:
    """Results of one model on one table: read where they are kept, else measured; of a patch, choice also without its SCN."""
    table, path = TABLES[name], inputs.tables[name]
    # By what they show: features may be deleted, and other images come under the same names.
    shown = [(image, _digest(vector.numpy().tobytes())) for image, vector in sorted(vectors.items())]
    variants = {row: True}
    if table.task == "choice" and model.corrects_scores:
        variants[f"{row}, {ALONE}"] = False
    for label, corrected in variants.items():
        file = out / "results" / f"{label.replace(', ', '-').replace(' ', '-')}-{name}.json"
        identity = _digest(repr((FORMAT, path.read_bytes(), weights, corrected, shown)).encode())
        kept = _kept(file, identity)
        if kept is None:
            say(f"{label}: {table.title}")
            names: dict[str, Any] = {"image_embeddings": vectors, "on_missing": options.missing, "progress": options.progress}
            names |= {"model": done.model, "pretrained": "" if row == "backbone" else label, "dataset": table.name}
            result: Result
            if table.task == "choice":
                result = evaluate_choice(model, read_choice(path), score_correction=corrected, **names)
            else:
                result = evaluate_retrieval(model, read_retrieval(path), **names)
            kept = {**result.to_dict(), "identity": identity}
            write_json(file, kept)
            done.made.append(f"results/{file.name}")
        done.results.setdefault(label, {})[name] = kept


def _kept(file: Path, identity: str) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # a result that cannot be read is measured again
        return None
    return found if isinstance(found, dict) and found.get("identity") == identity else None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _short(value: Any) -> str:
    text = json.dumps(value) if not isinstance(value, str) else value
    return text if len(text) <= 60 else f"{text[:57]}..."
