"""What several commands share: an encoder from ``MODEL``, ``--patch`` and their like."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    model: str, device: str | None, patch: str | None = None, strength: float = 1.0, gate: bool | None = None
) -> tuple[DualEncoder, DualEncoder]:
    """The encoder as it is, and with the patch (the same one where there is no patch)."""
    import clipmend

    plain = clipmend.load(model, device=device)
    if patch is None:
        return plain, plain
    from clipmend.negation import PeakPatch

    return plain, PeakPatch.from_pretrained(patch).apply(plain, strength, gate)


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
