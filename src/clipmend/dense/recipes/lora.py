"""LoRA: small low-rank additions to the attention (or more), merged into an ordinary model at the end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn

from clipmend.dense.recipes.base import Recipe, register

__all__ = ["AdapterRecipe", "LoraRecipe"]

_ATTENTION = r"self_attn\.(q_proj|k_proj|v_proj|out_proj)|attn"
_MLP = r"mlp\.(fc1|fc2|c_fc|c_proj)"
# Blocks of transformers' and open_clip's towers; open_clip's own text tower lies bare in the model.
_BLOCKS = {
    "image": r"(vision_model\.encoder\.layers|visual\.transformer\.resblocks)",
    "text": r"(text_model\.encoder\.layers|(text\.)?transformer\.resblocks)",
}


@dataclass(frozen=True, kw_only=True)
class AdapterRecipe(Recipe):
    """What LoRA and DoRA share: adapters of peft in the blocks of both sides, everything else fixed but the logit scale.

    Args:
        rank: of the additions; HN-CLIP's tables use 16.
        alpha: the additions are scaled by ``alpha / rank``. Not published; as large as the rank here.
        dropout: before the additions.
        targets: ``"attention"``: query, key, value and output of every block; ``"mlp"``: its two linear layers; ``"all"``: both.
            Which the paper adapts is not published.
        positions: train the text side's table of positions too; useful after stretching, when most of its rows are new.
        learning_rate: 5e-5, the paper's.
        gamma, margin, label_smoothing, global_loss, weight_decay, head_learning_rate, fixed_positions: see
            :class:`~clipmend.dense.recipes.base.Recipe`.
    """

    dora: ClassVar[bool] = False

    rank: int = 16
    alpha: int = 16
    dropout: float = 0.0
    targets: Literal["attention", "mlp", "all"] = "attention"
    positions: bool = False
    learning_rate: float = 5e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank < 1:
            raise ValueError(f"rank is {self.rank}; it must be at least 1")
        if self.alpha < 1:
            raise ValueError(f"alpha is {self.alpha}; it must be at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it must be from 0 up to, but not, 1")
        if self.targets not in ("attention", "mlp", "all"):
            raise ValueError(f"targets is {self.targets!r}; it must be 'attention', 'mlp' or 'all'")
        if self.fixed_positions and not self.positions:
            raise ValueError("fixed_positions has no use while the positions are not trained; say positions=True too")

    def target_names(self, model: nn.Module, sides: Sequence[str]) -> list[str]:
        """Names of the modules that get an adapter.

        Raises:
            ValueError: a model without such modules.
        """
        kinds = {"attention": _ATTENTION, "mlp": _MLP, "all": f"{_ATTENTION}|{_MLP}"}[self.targets]
        blocks = "|".join(_BLOCKS[side] for side in sides)
        pattern = re.compile(rf"({blocks})\.\d+\.({kinds})")
        found = [name for name, part in model.named_modules() if pattern.fullmatch(name) and isinstance(part, _ADAPTED)]
        if not found:
            raise ValueError(
                f"{type(model).__name__} has no blocks that {self.name} knows ({self.targets}); it takes the ViTs and text "
                "transformers of CLIP and SigLIP"
            )
        return found

    def prepare(self, model: nn.Module, sides: Sequence[str]) -> Any:
        """Put adapters in; see the base class."""
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError as error:
            raise ImportError(
                f"the recipe {self.name} needs peft ({error}); install it with: pip install 'clipmend[peft]'"
            ) from error
        names = self.target_names(model, sides)
        packed = [name for name in names if isinstance(model.get_submodule(name), nn.MultiheadAttention)]
        if self.dora and packed:
            raise ValueError(
                f"DoRA cannot adapt {packed[0]}: open_clip packs query, key and value into one matrix, of which DoRA has no "
                "magnitudes. Take the recipe lora, targets='mlp', or the same model of transformers"
            )
        trained = [parameter for parameter in _always_trained(model, self.positions, sides) if parameter.requires_grad]
        wrapped = get_peft_model(
            model,
            LoraConfig(r=self.rank, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=names, use_dora=self.dora),
        )
        for parameter in trained:
            parameter.requires_grad_()
        return wrapped

    def finish(self, model: nn.Module, prepared: Any) -> None:
        """Merge the adapters into the weights that they were added to."""
        prepared.merge_and_unload(safe_merge=True)
        if hasattr(model, "peft_config"):
            del model.peft_config


_ADAPTED = (nn.Linear, nn.MultiheadAttention)


def _always_trained(model: nn.Module, positions: bool, sides: Sequence[str]) -> list[nn.Parameter]:
    """The logit scale and bias, and, if asked for, the table of positions."""
    found = [parameter for name, parameter in model.named_parameters() if name in ("logit_scale", "logit_bias")]
    if positions and "text" in sides:
        table = re.compile(r"text_model\.embeddings\.position_embedding\.weight|(text\.)?positional_embedding")
        found += [parameter for name, parameter in model.named_parameters() if table.fullmatch(name)]
    return found


@register
@dataclass(frozen=True, kw_only=True)
class LoraRecipe(AdapterRecipe):
    """InfoNCE with LoRA adapters (Hu et al., ICLR 2022); with ``gamma=.5``, HN-CLIP's "LoRA + L_HN".

    open_clip's packed attention is adapted as a whole: query, key and value get one addition together, and the output another.

    Args:
        rank, alpha, dropout, targets, positions: see :class:`AdapterRecipe`.
        gamma, margin, label_smoothing, global_loss, learning_rate, weight_decay, head_learning_rate, fixed_positions: see
            :class:`~clipmend.dense.recipes.base.Recipe`.
    """

    name: ClassVar[str] = "lora"
    about: ClassVar[str] = "InfoNCE, low-rank adapters alone trained and merged (LoRA)"
