"""Judges from transformers, random weights of each family, against the libraries' own answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoTokenizer,
    BlipConfig,
    BlipForQuestionAnswering,
    BlipProcessor,
    CLIPVisionConfig,
    DetrConfig,
    DetrForObjectDetection,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    OwlViTConfig,
    OwlViTForObjectDetection,
    OwlViTProcessor,
    ResNetConfig,
    ViltConfig,
    ViltForQuestionAnswering,
    ViltProcessor,
)
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.detr.image_processing_pil_detr import DetrImageProcessorPil
from transformers.models.owlvit.image_processing_pil_owlvit import OwlViTImageProcessorPil
from transformers.models.vilt.image_processing_pil_vilt import ViltImageProcessorPil

from backbones import tiny
from clipmend.backbones.minilm import minilm_folder
from clipmend.evaluation.judged import Judge, OracleJudge
from clipmend.generation.judges import DetectorJudge, QuestionJudge, load_image_judge

SMALL = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 4}
THINGS = ["cat", "umbrella", "red cup"]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "a picture.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(path)
    return path


def bert() -> Any:
    return AutoTokenizer.from_pretrained(minilm_folder())


def vilt() -> tuple[Any, Any]:
    torch.manual_seed(0)
    words = bert()
    labels = {0: "no", 1: "maybe", 2: "yes"}
    config = ViltConfig(**SMALL, vocab_size=len(words), image_size=32, patch_size=16, id2label=labels, max_position_embeddings=40)
    return ViltForQuestionAnswering(config), ViltProcessor(ViltImageProcessorPil(size={"shortest_edge": 32}), words)


def blip() -> tuple[Any, Any]:
    torch.manual_seed(0)
    words = bert()
    ends = {"bos_token_id": words.cls_token_id, "eos_token_id": words.sep_token_id, "sep_token_id": words.sep_token_id}
    text = {**SMALL, **ends, "vocab_size": len(words), "pad_token_id": 0, "max_position_embeddings": 40, "encoder_hidden_size": 32}
    vision = {**SMALL, "image_size": 32, "patch_size": 16}
    model = BlipForQuestionAnswering(BlipConfig(text_config=text, vision_config=vision, projection_dim=16))
    return model, BlipProcessor(BlipImageProcessorPil(size={"height": 32, "width": 32}), words)


def llava() -> tuple[Any, Any]:
    torch.manual_seed(0)
    words = bert()
    words.model_input_names = ["input_ids", "attention_mask"]
    words.add_special_tokens({"additional_special_tokens": ["<image>"]})
    text = LlamaConfig(**SMALL, vocab_size=len(words), num_key_value_heads=4, bos_token_id=101, eos_token_id=102, pad_token_id=0)
    vision = CLIPVisionConfig(**SMALL, image_size=32, patch_size=8)
    config = LlavaConfig(text_config=text, vision_config=vision, image_token_index=words.convert_tokens_to_ids("<image>"))
    processor = LlavaProcessor(
        tiny.clip_processor(),
        words,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=(
            "{% for m in messages %}user {% for c in m['content'] %}{% if c['type'] == 'image' %}<image>"
            "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %} answer"
        ),
    )
    return LlavaForConditionalGeneration(config), processor


def owl() -> tuple[Any, Any]:
    torch.manual_seed(0)
    words = tiny.clip_tokenizer()
    text = {**SMALL, "vocab_size": len(words), "max_position_embeddings": 40, "pad_token_id": words.pad_token_id,
            "bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id}  # fmt: skip
    vision = {**SMALL, "image_size": 32, "patch_size": 16}
    model = OwlViTForObjectDetection(OwlViTConfig(text_config=text, vision_config=vision, projection_dim=32))
    return model, OwlViTProcessor(OwlViTImageProcessorPil(size={"height": 32, "width": 32}), words)


def detr() -> tuple[Any, Any]:
    torch.manual_seed(0)
    backbone = ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", out_features=["stage2"])
    config = DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=32,
        encoder_layers=1, decoder_layers=1, encoder_ffn_dim=32, decoder_ffn_dim=32, encoder_attention_heads=2,
        decoder_attention_heads=2, num_queries=5, id2label={0: "cat", 1: "dog", 2: "umbrella"},
    )  # fmt: skip
    return DetrForObjectDetection(config), DetrImageProcessorPil(size={"shortest_edge": 32, "longest_edge": 48})


@pytest.mark.parametrize(("make", "kind"), [(vilt, "labels"), (blip, "answer"), (llava, "chat")])
def test_models_that_answer_questions(make: Any, kind: str, picture: Path) -> None:
    judge = QuestionJudge(*make())
    assert isinstance(judge, Judge)
    assert judge.kind == kind
    found = judge.judge(picture, THINGS)
    assert len(found) == 3
    assert all(0 < value < 1 for value in found)
    assert len(set(found)) == 3  # the question is read
    assert judge.judge(picture, THINGS) == found


def test_what_the_probability_is(picture: Path) -> None:
    model, processor = vilt()
    judge = QuestionJudge(model, processor, question="{a}?")
    with torch.no_grad():
        logits = model(**processor(images=Image.open(picture), text="an umbrella?", return_tensors="pt")).logits[0]
    expected = logits[[0, 2]].softmax(0)[1].item()
    assert judge.judge(picture, ["umbrella"]) == [pytest.approx(expected, abs=1e-6)]


def test_what_the_first_word_is(picture: Path) -> None:
    model, processor = blip()
    judge = QuestionJudge(model, processor)
    with torch.no_grad():
        inputs = processor(images=Image.open(picture), text="is there a cat in the image?", return_tensors="pt")
        scores = model.generate(**inputs, max_new_tokens=1, output_scores=True, return_dict_in_generate=True).scores[0][0]
    yes, no = (processor.tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no"))
    assert judge.judge(picture, ["cat"]) == [pytest.approx(torch.sigmoid(scores[yes] - scores[no]).item(), abs=1e-5)]


def test_detectors_that_look_for_what_they_are_told(picture: Path) -> None:
    model, processor = owl()
    judge = DetectorJudge(model, processor, threshold=0.4)
    found = judge.judge(picture, THINGS)
    with torch.no_grad():
        outputs = model(**processor(images=Image.open(picture), text=[["a photo of a cat"]], return_tensors="pt"))
    boxes = processor.post_process_grounded_object_detection(outputs, threshold=0.0, target_sizes=[(40, 48)])[0]["scores"]
    best = boxes.max().item()
    assert found[0] == pytest.approx(best / 0.8 if best < 0.4 else 0.5 + (best - 0.4) / 1.2, abs=1e-5)
    assert len(set(found)) == 3


def test_detectors_of_fixed_classes(picture: Path) -> None:
    model, processor = detr()
    judge = DetectorJudge(model, processor)
    cat, cats, cup, zebra = judge.judge(picture, ["cat", "cats", "red cat", "zebra"])
    with torch.no_grad():
        outputs = model(**processor(images=Image.open(picture), return_tensors="pt"))
    boxes = outputs.logits.softmax(-1)[0, :, :3].max(0).values
    assert cat == cats == pytest.approx(boxes[0].item(), abs=1e-6)
    assert math.isnan(cup)
    assert math.isnan(zebra)


def test_models_that_cannot_judge() -> None:
    model, processor = vilt()
    model.config.id2label = {0: "no", 1: "maybe", 2: "perhaps"}
    with pytest.raises(ValueError, match=r"answers no questions|cannot answer"):
        QuestionJudge(model, processor)
    with pytest.raises(ValueError, match="is no detector"):
        DetectorJudge(model, processor)
    with pytest.raises(ValueError, match="between 0 and 1"):
        DetectorJudge(*detr(), threshold=1.0)


def test_judges_by_name(tmp_path: Path, picture: Path) -> None:
    model, processor = owl()
    model.save_pretrained(tmp_path / "owl")
    processor.save_pretrained(tmp_path / "owl")
    judge = load_image_judge(f"detector:{tmp_path / 'owl'}", "cpu")
    assert isinstance(judge, DetectorJudge)
    assert judge.judge(picture, THINGS) == pytest.approx(DetectorJudge(model, processor).judge(picture, THINGS), abs=1e-5)
    model, processor = blip()
    model.save_pretrained(tmp_path / "blip")
    processor.save_pretrained(tmp_path / "blip")
    assert isinstance(load_image_judge(f"vqa:{tmp_path / 'blip'}", "cpu"), QuestionJudge)
    with pytest.raises(ValueError, match="no model for detector"):
        load_image_judge(f"detector:{tmp_path / 'blip'}", "cpu")
    (tmp_path / "presence.csv").write_text("image,present\na.png,cat\n", encoding="utf-8")
    assert isinstance(load_image_judge(str(tmp_path / "presence.csv")), OracleJudge)


def test_two_judges_are_told_apart() -> None:
    first, second = QuestionJudge(*vilt()), QuestionJudge(*vilt(), question="is {a} to be seen?")
    assert first.fingerprint == QuestionJudge(*vilt()).fingerprint
    assert first.fingerprint != second.fingerprint
    assert DetectorJudge(*owl()).fingerprint != DetectorJudge(*owl(), threshold=0.3).fingerprint
