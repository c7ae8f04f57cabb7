"""What several commands share: an encoder from ``MODEL``, ``--patch`` and their like."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from clipmend.backbones import DualEncoder

__all__ = [
    "MAX_PIXELS_HELP",
    "MODEL_HELP",
    "PATCH_HELP",
    "check_corrects_scores",
    "load_encoder",
    "pixel_limit",
    "refuse_without_patch",
]

MODEL_HELP = (
    "Hub id or folder of a CLIP or SigLIP, 'open_clip:ARCH/TAG', 'scenes' or 'photos'; MODEL::FILE takes the weights from a file."
)
PATCH_HELP = "Patch to mend the text side with: a folder, a hub id, 'scenes' or 'photos'."
MAX_PIXELS_HELP = "Skip images of more pixels than this; 0 for no limit."


def load_encoder(
    model: str,
    device: str | None,
    patch: str | None = None,
    strength: float = 1.0,
    gate: bool | None = None,
    *,
    index: Path | str | None = None,
) -> tuple[DualEncoder, DualEncoder]:
    """The encoder as it is, and with the patch (the same one where there is no patch).

    ``index`` is what the model was named by, for the message where the patch is another model's.
    """
    import clipmend

    if patch is None:
        plain = clipmend.load(model, device=device)
        return plain, plain
    from clipmend.negation import PeakPatch
    from clipmend.negation.mismatch import MismatchError, ready_patch

    opened = PeakPatch.from_pretrained(patch)  # before the model: a patch is read in no time
    plain = clipmend.load(model, device=device)
    try:
        return plain, opened.apply(plain, strength, gate)
    except MismatchError as error:
        if index is None or plain.name == opened.backbone:
            raise
        ready = ready_patch(plain.name)
        way = f"use --patch {ready}" if ready else f"fit one for {plain.name} (clipmend fit)"
        raise MismatchError(
            f"the patch {patch} is of the model {opened.backbone}, and the index {index} of {plain.name}: {way}, or make an index "
            f"with {opened.backbone} (clipmend index)"
        ) from error


def refuse_without_patch(patch: str | None, **options: bool) -> None:
    """Options that only a patch gives a meaning to; each by its name and whether it was given.

    Raises:
        ValueError: one was given without ``--patch``.
    """
    given = [f"--{name.replace('_', '-')}" for name, there in options.items() if there]
    if patch is None and given:
        raise ValueError(f"{' and '.join(given)} need{'s' * (len(given) == 1)} --patch: without a patch there is nothing to change")


def check_corrects_scores(encoder: DualEncoder, option: str) -> None:
    """Refuse ``option``, which asks for a score correction, where the patch has none.

    Raises:
        ValueError: it has none.
    """
    if not encoder.corrects_scores:
        raise ValueError(
            f"{option} asks for a score correction, and this patch has none (it corrects embeddings only); leave it out"
        )


def pixel_limit(value: int) -> int | None:
    """``--max-pixels`` as the library takes it."""
    return value or None
