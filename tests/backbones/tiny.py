"""Tiny encoders with random weights of every family, saved as folders the way real checkpoints are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    CLIPTokenizer,
    GemmaTokenizer,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

TEXTS = [
    "a dog",
    ".",
    "a street with no cars, at night",
    " ? ",
    "No Cat",
    "a dog \U0001f436 on a sofa",
    "one two three four five six seven eight nine ten eleven twelve",
]
SHORT_TEXTS = TEXTS[:5]
BLANK = ["", "   "]
"""Texts of nothing: ``encode_texts`` refuses them, ``text_states`` gives what the library makes of them."""


def images() -> list[Image.Image]:
    """Three pictures of different sizes."""
    generator = torch.Generator().manual_seed(3)
    sizes = [(40, 40), (64, 37), (31, 50)]
    return [
        Image.fromarray(torch.randint(0, 256, (height, width, 3), generator=generator, dtype=torch.uint8).numpy())
        for width, height in sizes
    ]


def _letters() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def clip_tokenizer(pad_token: str = "<|endoftext|>") -> CLIPTokenizer:
    """CLIP's tokenizer over letters, with a few merges; as in CLIP, EOS has the highest id."""
    letters = _letters()
    merges = [("d", "o"), ("do", "g</w>"), ("n", "o</w>"), ("c", "a"), ("ca", "t</w>")]
    words = [*letters, *(letter + "</w>" for letter in letters), *("".join(pair) for pair in merges)]
    if pad_token != "<|endoftext|>":
        words.append(pad_token)
    words += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: k for k, word in enumerate(words)}
    return CLIPTokenizer(vocab=vocabulary, merges=merges, pad_token=pad_token, model_max_length=40)


def clip_model(tokenizer: CLIPTokenizer, *, legacy: bool = False, act: str = "quick_gelu", seed: int = 0) -> CLIPModel:
    """3 text blocks of width 32 into a joint space of 24; ``legacy``: the historic eos_token_id of OpenAI's configs."""
    torch.manual_seed(seed)
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 40,
        "hidden_act": act,
        "eos_token_id": 2 if legacy else tokenizer.eos_token_id,
        "bos_token_id": 0 if legacy else tokenizer.bos_token_id,
        "pad_token_id": 1 if legacy else tokenizer.pad_token_id,
        "projection_dim": 24,
    }
    vision = {
        "hidden_size": 40,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
        "hidden_act": act,
    }
    return _varied(CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)))


def clip_processor() -> CLIPImageProcessorPil:
    return CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})


def siglip_tokenizer() -> PreTrainedTokenizerFast:
    """Lower-cases, closes with </s>, pads with </s>: SigLIP's habits over letters."""
    words = ["<unk>", "</s>", *(letter for letter in _letters() if letter != letter.upper() or not letter.isalpha())]
    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        eos_token="</s>",
        pad_token="</s>",
        model_max_length=20,
        padding_side="right",
        model_input_names=["input_ids"],
    )


def gemma_tokenizer(padding_side: str = "right") -> GemmaTokenizer:
    """SigLIP 2's tokenizer as its fixed-resolution checkpoints name it: it keeps case, and an empty text has no token."""
    words = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *(chr(code) for code in range(33, 127))]
    return GemmaTokenizer(
        vocab={word: k for k, word in enumerate(words)}, merges=[], padding_side=padding_side, model_max_length=10**30
    )


def siglip_model(vocabulary: int, *, seed: int = 0) -> SiglipModel:
    """3 text blocks of width 32, 20 positions, into a joint space of 40."""
    torch.manual_seed(seed)
    text = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 20,
        "projection_size": 40,
        "pad_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": 1,
    }
    vision = {
        "hidden_size": 40,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
    }
    return _varied(SiglipModel(SiglipConfig(text_config=text, vision_config=vision)))


def siglip_processor() -> SiglipImageProcessorPil:
    return SiglipImageProcessorPil(size={"height": 32, "width": 32})


def bert_tokenizer() -> PreTrainedTokenizerFast:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Split("", "isolated")])
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=48,
    )


def bert_model(vocabulary: int, *, seed: int = 0) -> BertModel:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=48,
    )
    return _varied(BertModel(config))


def vit_classifier() -> ViTForImageClassification:
    """An image classifier of four named classes, 32 pixels."""
    names = {0: "tabby, tabby cat", 1: "espresso", 2: "daisy", 3: "moped"}
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return ViTForImageClassification(
        ViTConfig(**sizes, image_size=32, patch_size=16, id2label=names, label2id={name: k for k, name in names.items()})
    )


def vit_processor() -> ViTImageProcessor:
    return ViTImageProcessor(size={"height": 32, "width": 32})


def saved(folder: Path, *parts: Any) -> str:
    """Save model, tokenizer and image processor into ``folder`` as a checkpoint."""
    for part in parts:
        part.save_pretrained(folder)
    return str(folder)


def _varied(model: Any) -> Any:
    """Weights of ordinary size: with the libraries' small initial values every text would look alike."""
    generator = torch.Generator().manual_seed(17)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "logit" in name:
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * (0.1 if parameter.ndim == 1 else 0.7 / max(1, parameter.shape[-1]) ** 0.5))
    return model.eval()
