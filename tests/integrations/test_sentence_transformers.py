"""The losses under sentence-transformers' own trainer, on a small CLIP and on a text encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from backbones import tiny
from clipmend.losses import HardNegativeLoss, InfoNCELoss

sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra sentence-transformers")
datasets = pytest.importorskip("datasets", reason="needs the extra datasets")

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments  # noqa: E402

from clipmend.integrations.sentence_transformers import PairLoss  # noqa: E402

CAPTIONS = ["a cat", "a dog", "no cat", "a cat and a dog", "a cat", "do not go", "a can", "dog do"]


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    tokenizer = tiny.clip_tokenizer()
    return tiny.saved(tmp_path_factory.mktemp("clip"), tiny.clip_model(tokenizer), tokenizer, tiny.clip_processor())


def clip(folder: str) -> Any:
    from sentence_transformers.sentence_transformer import modules

    return SentenceTransformer(modules=[modules.Transformer(folder)], device="cpu")


def pictures(count: int) -> list[Image.Image]:
    generator = torch.Generator().manual_seed(1)
    return [
        Image.fromarray(torch.randint(0, 256, (40, 40, 3), generator=generator, dtype=torch.uint8).numpy()) for _ in range(count)
    ]


def test_value_is_that_of_the_loss(clip_folder: str) -> None:
    model = clip(clip_folder).eval()
    columns = [model.preprocess(pictures(4)), model.preprocess(CAPTIONS[:4])]
    value = PairLoss(model, HardNegativeLoss(0.5))([dict(column) for column in columns], torch.tensor([0, 1, 0, 2]))
    images = F.normalize(model(dict(columns[0]))["sentence_embedding"], dim=-1)
    texts = F.normalize(model(dict(columns[1]))["sentence_embedding"], dim=-1)
    scale = model[0].auto_model.logit_scale.exp()
    torch.testing.assert_close(value, HardNegativeLoss(0.5)(images, texts, scale, image_ids=[0, 1, 0, 2]))
    value.backward()
    assert model[0].auto_model.logit_scale.grad is not None
    fixed = PairLoss(model, InfoNCELoss(), scale=7.0)([dict(column) for column in columns], None)
    torch.testing.assert_close(fixed, InfoNCELoss()(images, texts, 7.0))
    with pytest.raises(ValueError, match="1 columns"):
        PairLoss(model)([dict(columns[0])])


def test_the_trainer_learns_with_it(clip_folder: str, tmp_path: Path) -> None:
    model = clip(clip_folder)
    data = datasets.Dataset.from_dict({"image": pictures(8), "text": CAPTIONS, "label": [0, 1, 2, 3, 0, 5, 6, 7]})
    loss = PairLoss(model, HardNegativeLoss(0.5))
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path / "out"), per_device_train_batch_size=8, num_train_epochs=15, learning_rate=2e-3, logging_steps=1,
        save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, seed=0, data_seed=0,
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss)
    trainer.train()
    values = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert min(values[-3:]) < 0.7 * values[0]
    assert loss.get_config_dict() == {"loss": "HardNegativeLoss(gamma=0.5, margin='live', label_smoothing=0.0)", "scale": None}
    model.save_pretrained(str(tmp_path / "kept"))
    again = SentenceTransformer(str(tmp_path / "kept"), device="cpu")
    torch.testing.assert_close(torch.from_numpy(again.encode(CAPTIONS[:2])), torch.from_numpy(model.encode(CAPTIONS[:2])))


def test_two_columns_of_text_use_the_usual_scale(tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer import modules

    tokenizer = tiny.bert_tokenizer()
    first = modules.Transformer(tiny.saved(tmp_path / "bert", tiny.bert_model(len(tokenizer)), tokenizer))
    model = SentenceTransformer(modules=[first, modules.Pooling(first.get_embedding_dimension())], device="cpu").eval()
    columns = [model.preprocess(CAPTIONS[:3]), model.preprocess(CAPTIONS[3:6])]
    value = PairLoss(model, InfoNCELoss())([dict(column) for column in columns])
    one, other = (F.normalize(model(dict(column))["sentence_embedding"], dim=-1) for column in columns)
    torch.testing.assert_close(value, InfoNCELoss()(one, other, 20.0))
