"""``load``: one name, or one live model, to one :class:`DualEncoder`."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.checkpoint import read_model
from clipmend.backbones.companions import read_companion
from clipmend.backbones.hub import hub_problem
from clipmend.backbones.kinds import kind_of
from clipmend.backbones.quiet import quiet_loading
from clipmend.backbones.weights import split_name

__all__ = ["load"]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_MINILM_NAMES = ("minilm", "all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")
_FORMS = (
    "'scenes', 'photos', 'photos:HUB_ID' and 'minilm' are bundled; 'open_clip:ARCH/TAG' loads an open_clip model; anything else is "
    "a folder or hub id of a transformers CLIP, SigLIP or text encoder; 'MODEL::FILE' takes the weights from a file"
)


def load(
    name: Any,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    *,
    tokenizer: Any = None,
    processor: Any = None,
    preprocess: Any = None,
    weights: str | os.PathLike[str] | None = None,
) -> DualEncoder:
    """Load an encoder.

    Args:
        name: one of

            - ``"scenes"``, ``"photos"``, ``"photos:HUB_ID"`` (with a transformers image classifier): the bundled encoders;
            - ``"minilm"``: all-MiniLM-L6-v2 by itself, text only;
            - a hub id or folder of a transformers CLIP, SigLIP or fixed-resolution SigLIP 2
              (``"openai/clip-vit-base-patch32"``), or of any other text encoder, sentence-transformers' included, which then has
              no image side;
            - ``"open_clip:ARCH/TAG"`` (``"open_clip:ViT-B-32/openai"``; extra ``open-clip``); without ``/TAG`` the weights are
              random, and ``"open_clip:hf-hub:ORG/NAME"`` is a hub id in open_clip's format;
            - a live model of transformers, open_clip or sentence-transformers. It is used where it is, put in evaluation mode and
              its parameters take no gradient; nothing else about it changes;
            - a :class:`DualEncoder`, which is returned as it is.
        device: where to put the weights; default: the GPU if there is one. Not for live models.
        dtype: floating-point type of the weights (``torch.float32`` or ``"float32"``, the default; ``"float16"``,
            ``"bfloat16"``). Results are float32 and the fingerprint is that of the weights before the cast. Not for live models.
        tokenizer: the tokenizer of a live model, or one to use instead of a checkpoint's own.
        processor: the processor (or image processor) of a live transformers model, or one to use instead of a checkpoint's own.
        preprocess: the evaluation transform of a live open_clip model.
        weights: a file to take the weights from in place of the model's own (NegCLIP, ConCLIP and other fine-tuned CLIPs):
            ``.safetensors`` or one of ``torch.save``'s, in open_clip's or transformers' layout, whichever the model has. Of
            the model itself only the config, tokenizer and preprocessing are read. The same as the name
            ``"MODEL::FILE"``, which is what the encoder calls itself. Not for bundled encoders, text encoders and live models.

    Raises:
        ValueError: the name or model is of a kind that cannot be used; says which and why. Or ``weights`` that do not fit it.
        OSError: no such model, or files that cannot be read or fetched.
        ImportError: an extra is missing; says which.

    Warns:
        ActivationWarning: ``weights`` were trained with another GELU than the model has, or may have been.

    Example:
        >>> encoder = clipmend.load("scenes")
        >>> encoder.encode_texts(["a red cat"]).shape
        torch.Size([1, 384])
    """
    if isinstance(name, DualEncoder):
        _refuse("an encoder", weights=weights)
        return name
    if isinstance(name, nn.Module):
        if weights is not None:
            raise ValueError("a live model is used as it is: load the weights into it yourself and leave weights= out")
        with quiet_loading():
            return _wrap(name, device, dtype, tokenizer, processor, preprocess)
    if not isinstance(name, (str, Path)):
        raise TypeError(f"cannot load {_shown(name)}: give a name, a folder or a live model; {_FORMS}")
    text = str(name)
    if not text.strip():
        raise ValueError(f"the model's name is empty; {_FORMS}")
    text, named = (text, None) if os.path.exists(text) else split_name(text)
    if named is not None:
        if weights is not None:
            raise ValueError(f"the name {str(name)!r} says where the weights are, and so does weights=; give one of them")
        if not text.strip() or not named.strip():
            raise ValueError(f"{str(name)!r} is not MODEL::FILE; {_FORMS}")
        weights = named
    where = _device(device)
    precision = _dtype(dtype)
    with quiet_loading():
        if text == "scenes" or text == "photos" or text.startswith("photos:"):
            if precision != torch.float32:
                raise ValueError(f"{text!r} runs in float32 only")
            _refuse(text, tokenizer=tokenizer, processor=processor, preprocess=preprocess, weights=weights)
            return _bundled(text, where)
        if text in _MINILM_NAMES and not os.path.exists(text):
            _refuse(text, tokenizer=tokenizer, processor=processor, preprocess=preprocess, weights=weights)
            return _minilm(where, precision)
        if text.startswith("open_clip:"):
            from clipmend.backbones.open_clip import load_open_clip

            _refuse(text, tokenizer=tokenizer, processor=processor, preprocess=preprocess)
            return load_open_clip(text.removeprefix("open_clip:"), where, precision, weights=weights)
        _refuse(text, preprocess=preprocess)
        return _pretrained(text, where, precision, tokenizer, processor, weights)


def _shown(value: Any) -> str:
    return f"{value!r:.60} ({kind_of(value)})"


def nearest(name: str, names: tuple[str, ...]) -> str | None:
    """The one of ``names`` that ``name`` is likely a misspelling of; ``None`` for none, and for anything with a slash."""
    found = get_close_matches(name.strip().lower(), names, 1, 0.75)
    return found[0] if found and "/" not in name else None


def _refuse(name: str, **unused: Any) -> None:
    """Arguments that would be dropped in silence."""
    for argument, value in unused.items():
        if value is not None:
            raise ValueError(f"{name} has no use for {argument}=; leave it out")


def _bundled(name: str, device: torch.device) -> DualEncoder:
    if name == "scenes":
        from clipmend.backbones.scenes import load_scenes

        return load_scenes(device)
    from clipmend.backbones.photos import load_photos

    classifier = name.partition(":")[2]
    if name != "photos" and not classifier.strip():
        raise ValueError(f"{name!r} names no classifier; write 'photos' for the bundled one or 'photos:HUB_ID'")
    try:
        return load_photos(classifier=classifier or None, device=device)
    except OSError as error:
        raise OSError(f"cannot load {name!r}: {' '.join(str(error).split())} ({_FORMS})") from error


def _minilm(device: torch.device, dtype: torch.dtype) -> DualEncoder:
    from clipmend.backbones.minilm import load_minilm
    from clipmend.backbones.text import TextOnlyEncoder

    return TextOnlyEncoder(load_minilm(), name="minilm").move(device, dtype)


def _pretrained(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    tokenizer: Any,
    processor: Any,
    weights: str | os.PathLike[str] | None,
) -> DualEncoder:
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    from clipmend.backbones import transformers_clip as clip

    folder = Path(name)
    if os.path.isdir(name):
        if not (folder / "config.json").is_file():
            raise OSError(f"{name} is a folder without config.json; it holds no transformers model")
    elif os.path.exists(name):
        raise OSError(f"{name} is a file; give the folder that holds the model's config.json")
    elif folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise OSError(f"there is no folder {name}; {_FORMS}")
    else:
        meant = nearest(name, ("scenes", "photos", "minilm"))
        if meant is not None:  # before the hub is asked for it
            raise OSError(f"cannot load {name!r}; did you mean {meant!r}? ({_FORMS})")
    problem = hub_problem(name)
    local = bool(problem)  # without the hub, what the local cache holds will do; asking for each file would take half a minute each
    try:
        config = AutoConfig.from_pretrained(name, local_files_only=local)
    except (OSError, ValueError) as error:
        reason = "; ".join(" ".join(part.split()).rstrip(".") for part in (str(error), problem) if part)
        # Not the error's own class, since some of those take other arguments than a message.
        kind_of_error = OSError if isinstance(error, OSError) else ValueError
        raise kind_of_error(f"cannot load {name!r}: {reason} ({_FORMS})") from error
    kind = config.model_type
    if kind == "siglip2":
        raise ValueError(f"{name} cannot be used: {clip.NAFLEX_REASON}")
    if kind in clip.DUAL_TYPES:
        return clip.load_dual_encoder(
            name, device, dtype, tokenizer=tokenizer, processor=processor, local_files_only=local, weights=weights
        )
    if weights is not None:
        raise ValueError(f"weights= is for CLIP, SigLIP and open_clip's models; {name} is of type {kind!r}")
    given_tokenizer, _ = clip.split_processor(processor)
    tokenizer = tokenizer if tokenizer is not None else given_tokenizer
    if given_tokenizer is None:
        _refuse(f"{name}, a text encoder,", processor=processor)
    if kind in ("clip_text_model", "siglip_text_model"):
        import transformers

        # The config names the class, since AutoModel would drop the projection.
        architecture = (config.architectures or [""])[0]
        projected = architecture == "CLIPTextModelWithProjection"
        model = read_model(transformers.CLIPTextModelWithProjection if projected else AutoModel, name, local_files_only=local)
        if tokenizer is None:
            tokenizer = read_companion(AutoTokenizer, name, "tokenizer", local_files_only=local)
        return clip.text_only_clip(model, tokenizer, name).move(device, dtype)
    if getattr(config, "vision_config", None) is not None:
        raise ValueError(
            f"{name} is an image-text model of type {kind!r}, which is not supported; supported: {', '.join(clip.DUAL_TYPES)}"
        )
    from clipmend.backbones.sentence import load_text_encoder

    return load_text_encoder(name, device, dtype, tokenizer=tokenizer, local_files_only=local)


def _wrap(model: nn.Module, device: Any, dtype: Any, tokenizer: Any, processor: Any, preprocess: Any) -> DualEncoder:
    if device is not None or dtype is not None:
        raise ValueError(
            "a live model is used where it is: move or cast it yourself (model.to(...)) and leave device and dtype out"
        )
    home = type(model).__module__.partition(".")[0]
    if home == "open_clip":
        from clipmend.backbones.open_clip import wrap_open_clip

        _refuse("a live model of open_clip", processor=processor)
        return wrap_open_clip(model, tokenizer=tokenizer, preprocess=preprocess)
    if home == "sentence_transformers":
        from clipmend.backbones.sentence import wrap_sentence_transformer

        _refuse("a live model of sentence-transformers", tokenizer=tokenizer, processor=processor, preprocess=preprocess)
        return wrap_sentence_transformer(model)
    if not hasattr(getattr(model, "config", None), "model_type"):
        raise ValueError(
            f"{type(model).__name__} is a model of neither transformers, open_clip nor sentence-transformers; subclass "
            "clipmend.backbones.text.TextAndImageEncoder around it"
        )
    _refuse("a live model of transformers", preprocess=preprocess)
    return _wrap_transformers(model, tokenizer, processor)


def _wrap_transformers(model: Any, tokenizer: Any, processor: Any) -> DualEncoder:
    from transformers import AutoImageProcessor, AutoTokenizer

    from clipmend.backbones import transformers_clip as clip
    from clipmend.backbones.text import TextOnlyEncoder
    from clipmend.backbones.tower import TextTower

    source = str(getattr(model, "name_or_path", "") or "")
    name = source or type(model).__name__
    given_tokenizer, image_processor = clip.split_processor(processor)
    tokenizer = tokenizer if tokenizer is not None else given_tokenizer
    kind = model.config.model_type
    dual = kind in (*clip.DUAL_TYPES, "siglip2") and hasattr(model, "get_image_features")
    if kind == "siglip2" and dual:
        raise ValueError(f"{name} cannot be used: {clip.NAFLEX_REASON}")
    missing = tokenizer is None or (dual and image_processor is None)
    local = bool(missing and source and hub_problem(source))
    if tokenizer is None:
        tokenizer = _companion(AutoTokenizer, source, "tokenizer", "tokenizer=", local)
    if dual:
        if image_processor is None:
            image_processor = _companion(AutoImageProcessor, source, "image processor", "processor=", local)
        return clip.TransformersEncoder(model, tokenizer, image_processor, name=name)
    if kind in ("clip_text_model", "siglip_text_model"):
        return clip.text_only_clip(model, tokenizer, name)
    return TextOnlyEncoder(TextTower.from_transformers(model, tokenizer), name=name)


def _companion(auto: Any, source: str, what: str, argument: str, local_files_only: bool) -> Any:
    """The tokenizer or image processor that lies where the live model was loaded from."""
    if not source:
        raise ValueError(f"the live model does not say where it came from, so its {what} is not known; pass {argument}")
    try:
        return read_companion(auto, source, what, local_files_only=local_files_only)
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(f"no {what} found for the live model at {source!r}; pass {argument}") from error


def _device(device: torch.device | str | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        where = torch.device(device)
        if where.type == "meta":
            raise ValueError("it holds no numbers")
        torch.empty(1, device=where)
    except Exception as error:  # an unknown name, a build without it, no such card: each backend raises what it likes
        reason = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        here = f"'cpu' and {gpus} of 'cuda'" if gpus else "'cpu'"
        raise ValueError(f"device {str(device)!r} cannot be used: {reason.rstrip('.')}; here is {here}") from error
    return where


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype:
    if dtype is None:
        return torch.float32
    chosen = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if chosen not in _DTYPES:  # torch has more floating-point types, but only as storage
        raise ValueError(
            f"dtype {dtype!r} is not a floating-point type that an encoder runs in: 'float32', 'float16', 'bfloat16' or 'float64'"
        )
    return chosen
