"""A mended text side, and the score correction, as ONNX files: for services and devices without PyTorch."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import clipmend
from clipmend.backbones.base import DualEncoder
from clipmend.backbones.tokens import check_texts, pad_ids
from clipmend.backbones.tower import TextTower
from clipmend.negation.export_files import page, save_tokenizer
from clipmend.negation.export_graphs import MatrixGraph, PairsGraph, TextGraph
from clipmend.negation.export_place import FACTS, INT8, KIND, MATRIX, PAIRS, TEXT, check_target, place
from clipmend.negation.mended import Mended
from clipmend.negation.pairs import minimal_pairs

if TYPE_CHECKING:
    from clipmend.negation.patch import PeakPatch

__all__ = ["INT8", "MATRIX", "PAIRS", "TEXT", "ExportReport", "export_onnx", "session"]

TOLERANCE = 1e-4  # between an exported graph and PyTorch, of numbers of order one
_PAGE = "README.md"
_ONE_FILE = 2**31 - 2**27  # a protobuf holds 2 GiB; weights beyond go into a file beside it
_BATCH = 32  # texts at a time when int8 is compared with float32


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how near it is.

    Args:
        folder: where it lies.
        files: size in bytes of each graph, weights beside it included.
        text_embeds: largest difference of an embedding's component from PyTorch's.
        scores: the same of a corrected score; ``None`` for a patch without SCN.
        cosine_mean: mean cosine of int8 and float32 embeddings of the sample; ``None`` without int8, as are those below.
        cosine_min: the smallest.
        change_cosine_mean: mean cosine of what the patch changes (corrected less plain), int8 and float32.
        change_cosine_min: the smallest.
        texts: texts of the sample.
    """

    folder: Path
    files: dict[str, int]
    text_embeds: float
    scores: float | None
    cosine_mean: float | None = None
    cosine_min: float | None = None
    change_cosine_mean: float | None = None
    change_cosine_min: float | None = None
    texts: int = 0


def export_onnx(
    patch: PeakPatch,
    encoder: DualEncoder,
    folder: str | os.PathLike[str],
    *,
    strength: float = 1.0,
    normalize: bool = True,
    int8: bool = False,
    texts: Sequence[str] | None = None,
    allow_mismatch: bool = False,
) -> ExportReport:
    """See :meth:`PeakPatch.export_onnx`."""
    _check_installed()
    mended = patch.apply(encoder, strength, gate=False, allow_mismatch=allow_mismatch)
    tower = _tower_of(encoder)
    sample = _sample() if texts is None else check_texts(texts)
    if not sample:
        raise ValueError("there are no texts to compare by; leave texts= out for the built-in captions")
    target = Path(folder).absolute()  # "." has no name of its own
    check_target(target)
    new = [above for above in target.parents if not above.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        beside.chmod(0o755)  # mkdtemp keeps others out
        facts = _write(patch, mended, tower, beside, strength, normalize, int8, sample)
        place(beside, target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        with suppress(OSError):  # one that holds something now stays, and so do those above it
            for above in new:
                above.rmdir()
    measured = {key: value for key, value in (facts["int8"] or {}).items() if key != "file"}
    parity = facts["parity"]
    return ExportReport(Path(folder), facts["files"], parity["text_embeds"], parity["scores"], **measured)


def _write(
    patch: PeakPatch,
    mended: Mended,
    tower: TextTower,
    folder: Path,
    strength: float,
    normalize: bool,
    int8: bool,
    sample: list[str],
) -> dict[str, Any]:
    config, scn = patch.config, mended._scn if strength else None
    assert config.peak is not None
    assert config.anchor is not None
    assert config.scn_layers is not None
    graph = TextGraph(
        tower,
        mended._ecn,
        peak=config.peak,
        anchor=config.anchor,
        scn_layers=tuple(config.scn_layers) if scn is not None else (),
        alpha=strength * float(mended._ecn.log_alpha.exp()),
        normalize=normalize,
    )
    outputs = ["text_embeds", "plain_text_embeds", *(["contexts"] if scn is not None else [])]
    ids, mask = _padded(tower, ["a dog", "a street with no cars"])
    shape: dict[int, Any] = {0: torch.export.Dim("batch", min=1, max=2**20)}
    if not tower.fixed_length:
        shape[1] = torch.export.Dim("length", min=2, max=tower.context_length)
    _save(graph, {"input_ids": ids, "attention_mask": mask}, shape, outputs, folder / TEXT)
    parity: dict[str, Any] = {**_text_parity(folder / TEXT, mended, tower, sample, normalize), "scores": None}
    if scn is not None:
        parity["scores"] = _save_scores(scn, mended, strength, folder, sample)
    measured = _quantise(folder, tower, sample) if int8 else None
    facts: dict[str, Any] = {
        "kind": KIND,
        "model": mended.encoder.name,
        "fingerprint": mended.fingerprint.to_dict(),
        "strength": strength,
        "normalize": normalize,
        "gate": config.gate,
        "embed_dim": tower.embed_dim,
        "scn_layers": len(config.scn_layers) if scn is not None else 0,
        "context_length": tower.context_length,
        "fixed_length": tower.fixed_length,
        "pad_id": tower.tokens.pad_id,
        "pad_left": tower.pad_left,
        "tokenizer": asdict(save_tokenizer(tower.tokens, folder)),
        "files": {graph.name: _size(graph) for graph in sorted(folder.glob("*.onnx"))},
        "parity": parity,
        "int8": measured,
        "versions": {"clipmend": clipmend.__version__, "torch": torch.__version__},
    }
    facts["written"] = sorted({*(path.name for path in folder.iterdir()), _PAGE, FACTS})
    (folder / _PAGE).write_text(page(facts), encoding="utf-8")
    (folder / FACTS).write_text(json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    return facts


# ---- checks before the work --------------------------------------------------------------------------------------------------


def _check_installed() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"the export cannot be made ({error}); install what it needs with: pip install 'clipmend[onnx]'"
        ) from error


def _tower_of(encoder: DualEncoder) -> TextTower:
    tower = getattr(encoder, "tower", None)
    if not isinstance(tower, TextTower):
        raise ValueError(f"{encoder.name} is an encoder of another make, without a TextTower; only those can be exported")
    if tower.dtype != torch.float32:
        raise ValueError(f"{encoder.name} is in {str(tower.dtype).removeprefix('torch.')}; load it in float32 to export it")
    if tower.model.training:
        raise ValueError(f"{type(tower.model).__name__} is in training mode; call .eval() on it before exporting")
    return tower


# ---- from PyTorch to ONNX -----------------------------------------------------------------------------------------------------


def _save(module: nn.Module, inputs: Mapping[str, Tensor], shape: Any, outputs: Sequence[str], file: Path) -> None:
    """Trace and write; ``shape``: the free sizes, one for all inputs or one an input."""
    shapes = shape if set(shape) == set(inputs) else dict.fromkeys(inputs, shape)
    module.eval()
    with torch.no_grad(), _quiet():
        program: Any = torch.onnx.export(
            module,
            kwargs=dict(inputs),
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=list(inputs),
            output_names=list(outputs),
            verbose=False,
        )
        weights = sum(value.numel() * value.element_size() for value in module.state_dict().values())
        program.save(file, external_data=weights > _ONE_FILE)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's and the quantiser's remarks on what is not installed and on names of axes."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _size(graph: Path) -> int:
    return sum(part.stat().st_size for part in (graph, graph.with_name(graph.name + ".data")) if part.is_file())


def _save_scores(scn: Any, mended: Mended, strength: float, folder: Path, sample: list[str]) -> float:
    """Write the score correction in both forms; the largest difference from :meth:`Mended.score`."""
    width, place = scn.embed_dim, mended.device
    example = {
        "images": F.normalize(torch.ones(3, width, device=place), dim=-1),
        "contexts": F.normalize(torch.ones(3, scn.num_layers, width, device=place), dim=-1),
    }
    _save(PairsGraph(scn, strength), example, {0: torch.export.Dim("pairs", min=1, max=2**30)}, ["scores"], folder / PAIRS)
    rows, columns = (torch.export.Dim(name, min=1, max=2**30) for name in ("images", "texts"))
    example["contexts"] = example["contexts"][:2]
    _save(MatrixGraph(scn, strength), example, {"images": {0: rows}, "contexts": {0: columns}}, ["scores"], folder / MATRIX)
    prepared = mended.prepare_texts(sample[:5], on_long="truncate")
    assert prepared.context is not None
    images = F.normalize(torch.randn(7, width, generator=torch.Generator().manual_seed(0)), dim=-1)
    pairs, matrix = session(folder / PAIRS), session(folder / MATRIX)
    apart = [0.0]
    for n, m in ((7, 5), (1, 1), (7, 1), (1, 5)):
        i, t = images[:n], prepared.context[:m]
        expected = mended.score(i, prepared[:m])
        apart.append(_apart(matrix.run(None, {"images": i.numpy(), "contexts": t.numpy()})[0], expected))
        every = torch.cartesian_prod(torch.arange(n), torch.arange(len(t))).reshape(-1, 2)
        actual = pairs.run(None, {"images": i[every[:, 0]].numpy(), "contexts": t[every[:, 1]].numpy()})[0]
        apart.append(_apart(actual.reshape(n, -1), expected))
    return _checked(apart, "the score correction")


# ---- how near it is -----------------------------------------------------------------------------------------------------------


def session(file: Path, threads: int | None = None) -> Any:
    """An ``onnxruntime`` session on the CPU; ``threads``: how many, as many as torch's where ``None``."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads() if threads is None else threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def _padded(tower: TextTower, texts: Sequence[str], more: int = 0) -> tuple[Tensor, Tensor]:
    """``[B, T]`` ids and mask, both int64, as the tower pads; ``more``: padding beyond the longest text."""
    rows = tower.tokenise(texts, "truncate").ids
    length = min(tower.context_length, max(2, *map(len, rows)) + more)
    if tower.fixed_length:
        length = tower.context_length
    ids, mask = pad_ids(rows, tower.tokens.pad_id, length=length, left=tower.pad_left)
    return ids.to(tower.device), mask.long().to(tower.device)


def _feed(ids: Tensor, mask: Tensor) -> dict[str, np.ndarray]:
    return {"input_ids": ids.cpu().numpy(), "attention_mask": mask.cpu().numpy()}


def _text_parity(file: Path, mended: Mended, tower: TextTower, sample: list[str], normalize: bool) -> dict[str, Any]:
    """Largest difference from :meth:`Mended.encode_texts`: one text, a few, many; short, with more padding, at full length."""
    running = session(file)
    longest = " ".join(sample[:1] * tower.context_length)
    apart, seen, batches = [0.0], 0, 0
    for texts, more in ((sample[:1], 0), (sample[:3], 3), (["a", *sample[1:7]], 0), ([longest, sample[0]], 0), ([sample[-1]], 5)):
        expected = mended.encode_texts(texts, normalize=normalize, on_long="truncate")
        plain = mended.encoder.encode_texts(texts, normalize=normalize, on_long="truncate")
        actual = running.run(["text_embeds", "plain_text_embeds"], _feed(*_padded(tower, texts, more)))
        scale = 1.0 if normalize else max(1.0, float(plain.norm(dim=-1).max()))
        apart += [_checked([_apart(actual[k], wanted) / scale], "the text side") for k, wanted in enumerate((expected, plain))]
        seen, batches = seen + len(texts), batches + 1
    return {"texts": seen, "batches": batches, "text_embeds": _checked(apart, "the text side")}


def _apart(actual: np.ndarray, expected: Tensor) -> float:
    if actual.shape != tuple(expected.shape):
        raise ValueError(f"the exported graph gives {list(actual.shape)} where PyTorch gives {list(expected.shape)}")
    return float(np.abs(actual - expected.numpy()).max())


def _checked(apart: Sequence[float], what: str) -> float:
    worst = float(np.max(apart))  # NaN if one of them is, which Python's own max would pass over
    if not worst <= TOLERANCE:  # NaN too
        raise ValueError(
            f"the exported graph of {what} is {worst:.2g} off PyTorch's numbers, more than {TOLERANCE:g}; nothing was written. "
            "Another version of torch or onnxscript may do better"
        )
    return worst


def _sample() -> list[str]:
    """Plain and negated captions, in turn."""
    return [text for pair in minimal_pairs("negation") for text in (pair.positive, pair.contrast)]


def _quantise(folder: Path, tower: TextTower, sample: list[str]) -> dict[str, Any]:
    """Write the 8-bit text side, and compare it with the float32 one on ``sample``."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(
            folder / TEXT,
            folder / INT8,
            weight_type=QuantType.QInt8,
            reduce_range=True,  # 7 bits: with 8, sums overflow on processors without VNNI, and the embeddings are others
            per_channel=True,
            nodes_to_exclude=_not_linear(folder / TEXT),
            use_external_data_format=(folder / f"{TEXT}.data").is_file(),
        )
    whole, small = session(folder / TEXT), session(folder / INT8)
    cosines, changes = [], []
    for start in range(0, len(sample), _BATCH):
        inputs = _feed(*_padded(tower, sample[start : start + _BATCH]))
        a, plain_a = whole.run(["text_embeds", "plain_text_embeds"], inputs)
        b, plain_b = small.run(["text_embeds", "plain_text_embeds"], inputs)
        cosines.append(_cosine(a, b))
        changes.append(_cosine(a - plain_a, b - plain_b))
    cosine, change = np.concatenate(cosines), np.concatenate(changes)
    if not np.isfinite(cosine).all():
        raise ValueError("the 8-bit graph gives numbers that are not finite; export without int8")
    return {
        "texts": len(sample),
        "cosine_mean": float(cosine.mean()),
        "cosine_min": float(cosine.min()),
        "change_cosine_mean": float(change.mean()),
        "change_cosine_min": float(change.min()),
    }


def _not_linear(file: Path) -> list[str]:
    """Names of the matrix products that are no linear layer (activations times a weight ``[in, out]``): they stay in float32."""
    import onnx

    graph = onnx.load(file, load_external_data=False).graph
    weights = {weight.name: len(weight.dims) for weight in graph.initializer}
    products = (node for node in graph.node if node.op_type == "MatMul")
    return [node.name for node in products if node.input[0] in weights or weights.get(node.input[1]) != 2]


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return (a * b).sum(-1) / np.maximum(length, np.finfo(np.float32).tiny)
