"""A live dual encoder as a folder that its own library opens: model, config, tokenizer, image preprocessing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.open_clip import OpenClipEncoder
from clipmend.backbones.positions import set_token_limit
from clipmend.backbones.transformers_clip import TransformersEncoder
from clipmend.backbones.weights import split_name
from clipmend.checkpoint import writing

__all__ = ["library_of", "save_encoder"]


def library_of(encoder: DualEncoder) -> str:
    """``"transformers"`` or ``"open_clip"``: whose model an encoder of :func:`clipmend.load` holds.

    Raises:
        ValueError: neither's: a bundled encoder, or one without an image side.
    """
    if isinstance(encoder, TransformersEncoder):
        return "transformers"
    if isinstance(encoder, OpenClipEncoder):
        return "open_clip"
    raise ValueError(f"{encoder.name} is no image-text model of transformers or open_clip, so it cannot be saved as one")


def save_encoder(encoder: Any, folder: Path) -> None:
    """Write the model as it is now, with everything that plain transformers or open_clip needs to open it.

    transformers: ``from_pretrained(folder)`` of model, tokenizer, image processor and processor. open_clip: the name
    ``local-dir:FOLDER`` for ``create_model_and_transforms`` and ``get_tokenizer``. Weights are safetensors; nothing is pickled.

    Args:
        encoder: from :func:`clipmend.load`, of transformers or open_clip. The length of its texts is read off the model, and its
            tokenizer's limit is set to it.
        folder: is there, and empty.

    Raises:
        ValueError: an encoder of another kind, or a live open_clip model whose architecture is not known by name.
        OSError: it cannot be written.
    """
    if library_of(encoder) == "transformers":
        tokenizer = encoder.tower.tokens.tokenizer
        set_token_limit(tokenizer, int(encoder.model.text_model.config.max_position_embeddings))
        with writing(folder):
            for part in (encoder.model, tokenizer, encoder.image_processor):
                part.save_pretrained(folder)
        return
    _save_open_clip(encoder, folder)


def _save_open_clip(encoder: Any, folder: Path) -> None:
    import open_clip
    from safetensors.torch import save_file

    name = split_name(encoder.name)[0].removeprefix("open_clip:")
    config = open_clip.get_model_config(name if name.startswith(("hf-hub:", "local-dir:")) else name.partition("/")[0])
    if config is None:
        raise ValueError(
            f"{encoder.name} does not say which of open_clip's architectures it is; load it by name, as 'open_clip:ARCH/TAG'"
        )
    model = encoder.model
    text = getattr(model, "text", model)
    config.setdefault("text_cfg", {})["context_length"] = int(text.context_length)
    # Some tags change the activation of their architecture, and only the live model knows.
    config["quick_gelu"] = any(type(part).__name__ == "QuickGELU" for part in text.transformer.modules())
    tokenizer: Any = getattr(encoder.tower.tokens, "tokenizer", None)
    if config["text_cfg"].get("hf_tokenizer_name") and hasattr(tokenizer, "save_pretrained"):
        set_token_limit(tokenizer, int(text.context_length))
        tokenizer.save_pretrained(folder)
    preprocessing = {key: encoder.preprocessing[key] for key in ("mean", "std", "interpolation", "resize_mode")}
    described = {"model_cfg": config, "preprocess_cfg": preprocessing}
    (folder / "open_clip_config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    state = {key: tensor.detach().contiguous() for key, tensor in model.state_dict().items()}
    with writing(folder):
        save_file(state, folder / "open_clip_model.safetensors", metadata={"format": "pt"})
