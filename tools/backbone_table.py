"""How large a patch is beside each backbone: the table of docs/backbones.md, computed from the models' configs.

    python tools/backbone_table.py

Every model is built on torch's meta device, which holds shapes and no numbers. RN50 needs open_clip; without, its row is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import CLIPConfig, CLIPModel, SiglipConfig, SiglipModel

from clipmend.negation.networks import EmbeddingCorrectionNetwork, ScoreCorrectionNetwork

CAPTION = 16  # tokens of an ordinary caption, start and end included


@dataclass(frozen=True)
class Row:
    """One backbone.

    Args:
        name: what people call it.
        width: of its text states.
        embed_dim: of the joint space.
        layers: text layers.
        parameters: of the whole model.
        block_weights: numbers in the weight matrices of the text blocks, each of which meets every token once.
        tokens: of an ordinary caption as the text tower runs it.
    """

    name: str
    width: int
    embed_dim: int
    layers: int
    parameters: int
    block_weights: int
    tokens: int

    @property
    def ecn(self) -> int:
        with torch.device("meta"):
            return _count(EmbeddingCorrectionNetwork(self.width, self.embed_dim))

    @property
    def scn(self) -> int:
        with torch.device("meta"):
            return _count(ScoreCorrectionNetwork(self.embed_dim, 2))

    @property
    def share(self) -> float:
        """Parameters of both networks, in per cent of the backbone's."""
        return 100 * (self.ecn + self.scn) / self.parameters

    @property
    def added_work(self) -> float:
        """Multiplications of the ECN for a caption, in per cent of the text tower's."""
        tower = self.tokens * (self.block_weights + 2 * self.tokens * self.width * self.layers)
        with torch.device("meta"):
            mlp = sum(p.numel() for p in EmbeddingCorrectionNetwork(self.width, self.embed_dim).mlp.parameters() if p.ndim == 2)
        # Eight folded heads meet every token twice; the mixed tokens then go through the value and output projections.
        attention = 2 * 8 * self.width * self.tokens + 2 * self.width**2
        return 100 * (mlp + attention) / tower

    def markdown(self) -> str:
        sizes = f"{self.width} / {self.embed_dim} | {self.layers} | {self.parameters:,} | {self.ecn:,} | {self.scn:,}"
        return f"| {self.name} | {sizes} | {self.share:.1f}% | {_percent(self.added_work)} |"


HEADER = (
    "| backbone | text width / joint size | text layers | parameters | ECN | SCN, two layers | both, share | ECN, added work |",
    "|---|---|---|---|---|---|---|---|",
)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _percent(value: float) -> str:
    return f"{value:.1f}%" if value >= 0.05 else "under 0.1%"


def _matrices(blocks: Any) -> int:
    return sum(parameter.numel() for parameter in blocks.parameters() if parameter.ndim == 2)


def clip(name: str, text: tuple[int, int, int], vision: tuple[int, int, int, int], embed_dim: int, positions: int = 77) -> Row:
    """A CLIP of transformers: (width, heads, layers) of the text side, (width, heads, layers, patch) of the image side."""
    width, heads, layers = text
    wide, vision_heads, vision_layers, patch = vision
    config = CLIPConfig(
        text_config={
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "max_position_embeddings": positions,
        },
        vision_config={
            "hidden_size": wide,
            "intermediate_size": 4 * wide,
            "num_attention_heads": vision_heads,
            "num_hidden_layers": vision_layers,
            "patch_size": patch,
        },
        projection_dim=embed_dim,
    )
    with torch.device("meta"):
        model = CLIPModel(config)
    return Row(name, width, embed_dim, layers, _count(model), _matrices(model.text_model.encoder.layers), CAPTION)


def siglip(name: str, width: int, layers: int, inner: int, heads: int, patch: int, vocabulary: int) -> Row:
    """A SigLIP of transformers, whose two sides have the same sizes; its texts are padded to 64 tokens always."""
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_attention_heads": heads, "num_hidden_layers": layers}
    text = {**sizes, "vocab_size": vocabulary, "projection_size": width, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 1}
    with torch.device("meta"):
        model = SiglipModel(SiglipConfig(text_config=text, vision_config={**sizes, "patch_size": patch}))
    return Row(name, width, width, layers, _count(model), _matrices(model.text_model.encoder.layers), 64)


def resnet() -> Row:
    """open_clip's RN50."""
    import open_clip

    with torch.device("meta"):
        model = open_clip.create_model("RN50", device="meta")
    blocks = model.transformer.resblocks
    return Row("RN50 (open_clip)", 512, 1024, len(blocks), _count(model), _matrices(blocks), CAPTION)


def rows() -> list[Row]:
    """Every row but RN50's."""
    return [
        clip("CLIP ViT-B/32, MetaCLIP B/32", (512, 8, 12), (768, 12, 12, 32), 512),
        clip("CLIP ViT-B/16", (512, 8, 12), (768, 12, 12, 16), 512),
        clip("CLIP ViT-L/14", (768, 12, 12), (1024, 16, 24, 14), 768),
        clip("Long-CLIP ViT-L/14, 248 tokens", (768, 12, 12), (1024, 16, 24, 14), 768, 248),
        clip("CLIP ViT-H/14 (LAION)", (1024, 16, 24), (1280, 16, 32, 14), 1024),
        siglip("SigLIP B/16", 768, 12, 3072, 12, 16, 32000),
        siglip("SigLIP 2 B/16", 768, 12, 3072, 12, 16, 256000),
        siglip("SigLIP So400m/14", 1152, 27, 4304, 16, 14, 32000),
    ]


def main() -> None:
    """Print the table."""
    table = rows()
    try:
        table.append(resnet())
    except ImportError:
        print("RN50 is left out: open_clip is not installed\n")
    print("\n".join([*HEADER, *(row.markdown() for row in table)]))


if __name__ == "__main__":
    main()
