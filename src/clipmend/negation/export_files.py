"""What lies beside exported graphs: the tokenizer, and a page that says how to use them without this library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from clipmend.backbones.quiet import quiet_loading
from clipmend.backbones.tokens import HFTokens, TextTokens

__all__ = ["SavedTokenizer", "page", "save_tokenizer"]

_PROBES = ("a dog", "A street, with NO cars!", "it isn't a cat", "Zwei Hunde und keine Katze", "", "3 dogs & 10 cats (none black)")


@dataclass(frozen=True)
class SavedTokenizer:
    """How texts become ids outside this library.

    Args:
        file: ``"tokenizer.json"``, to be read with the package ``tokenizers``; ``""`` where there is only transformers' own folder
            of files, or none.
        prepare: what is done to a text first: ``""`` (nothing), ``"lower"``, or the name of open_clip's cleaning function.
        note: what else a user must know.
    """

    file: str
    prepare: str = ""
    note: str = ""


def save_tokenizer(tokens: TextTokens, folder: Path) -> SavedTokenizer:
    """Write the tokenizer's files into ``folder``, if it is of a kind that can be written."""
    note = ""
    if isinstance(tokens, HFTokens):
        tokenizer, prepare = tokens.tokenizer, tokens.prepare_name
        if getattr(tokens, "blank", None) is not None:
            note = f"Drop the closing token (id {tokens.blank}), and set every other token of that id to 0."  # type: ignore[attr-defined]
    else:
        tokenizer, prepare = _byte_pairs(tokens), ""
        if tokenizer is None:
            return SavedTokenizer("", note="Its tokenizer cannot be written to a file: make the ids with the model's own library.")
    with quiet_loading():
        tokenizer.save_pretrained(folder)
    file = "tokenizer.json" if (folder / "tokenizer.json").is_file() else ""
    return SavedTokenizer(file, prepare, note)


def _byte_pairs(tokens: TextTokens) -> Any:
    """open_clip's byte-pair tokenizer as transformers has it; ``None`` where the two do not agree on a few texts."""
    from transformers import CLIPTokenizer

    own: Any = getattr(tokens, "tokenizer", None)
    if own is None or not (hasattr(own, "encoder") and hasattr(own, "bpe_ranks")):
        return None
    merges = [pair for pair, _ in sorted(own.bpe_ranks.items(), key=lambda item: item[1])]
    words = {number: word for word, number in own.encoder.items()}
    tokenizer = CLIPTokenizer(
        vocab=dict(own.encoder),
        merges=merges,
        bos_token=words[own.sot_token_id],
        eos_token=words[own.eot_token_id],
        model_max_length=tokens.context_length,
    )
    probes = list(_PROBES)
    return tokenizer if tokenizer(probes)["input_ids"] == tokens(probes).ids else None


def page(facts: Mapping[str, Any]) -> str:
    """The export folder's README.md, from what ``export.json`` says."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters["quoted"] = lambda text: json.dumps(str(text), ensure_ascii=False)
    return environment.from_string(files("clipmend.negation").joinpath("export.md.j2").read_text("utf-8")).render(**facts)
