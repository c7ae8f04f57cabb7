"""What several commands share: an encoder from ``MODEL``, ``--patch`` and their like."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clipmend.backbones import DualEncoder

__all__ = ["MAX_PIXELS_HELP", "MODEL_HELP", "PATCH_HELP", "load_encoder", "pixel_limit"]

MODEL_HELP = "Hub id or folder of a CLIP or SigLIP, 'open_clip:ARCH/TAG', 'scenes' or 'photos'."
PATCH_HELP = "Patch to mend the text side with: a folder, a hub id, 'scenes' or 'photos'."
MAX_PIXELS_HELP = "Skip images of more pixels than this; 0 for no limit."


def load_encoder(
    model: str, device: str | None, patch: str | None = None, strength: float = 1.0, gate: bool | None = None
) -> tuple[DualEncoder, DualEncoder]:
    """The encoder as it is, and with the patch (the same one where there is no patch)."""
    import clipmend

    plain = clipmend.load(model, device=device)
    if patch is None:
        return plain, plain
    from clipmend.negation import PeakPatch

    return plain, PeakPatch.from_pretrained(patch).apply(plain, strength, gate)


def pixel_limit(value: int) -> int | None:
    """``--max-pixels`` as the library takes it."""
    return value or None
