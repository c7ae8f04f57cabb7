"""Whether an encoder is the one that a patch was fitted on, and what to tell where it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clipmend.negation.files import BUNDLED

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder, Fingerprint
    from clipmend.negation.patch import PeakPatch

__all__ = ["MismatchError", "check_sizes", "mismatch_of", "ready_patch"]

_PARTS = {
    "text": ("text weights", "its text weights differ, so that its states mean something else"),
    "tokenizer": ("tokenizer", "its tokenizer differs"),
    "image": ("image side", "its image side differs, and the corrected texts point to where the other one puts its images"),
}


class MismatchError(ValueError):
    """A patch and an encoder that do not belong together."""


def check_sizes(patch: PeakPatch, encoder: DualEncoder) -> None:
    """Refuse an encoder that the patch's networks cannot read.

    Raises:
        MismatchError: other widths or layers than the patch's.
    """
    try:
        patch.config.resolved(encoder)
    except ValueError as error:
        raise MismatchError(
            f"This patch was fitted on {patch.backbone}, and {encoder.name} is another encoder ({error}). {remedy(encoder)}"
        ) from error


def mismatch_of(patch: PeakPatch, name: str, other: Fingerprint) -> str:
    """What about the encoder ``name`` is not what the patch was fitted on; ``""`` if it fits.

    What either side does not know of itself (``""``) is not compared. Where both have one name, the digests are told, since the
    name does not say what is other about it.
    """
    own = patch.fingerprint
    differing = [
        part
        for part in _PARTS
        if (mine := getattr(own, part)) and mine != getattr(other, part) and (part != "image" or getattr(other, part))
    ]
    if not differing:
        return ""
    reasons = "; ".join(_PARTS[part][1] for part in differing)
    if name != patch.backbone:
        return f"This patch was fitted on {patch.backbone}, and {name} is not the same encoder: {reasons}."
    digests = ", ".join(
        f"{_PARTS[part][0]} {getattr(own, part)[:12]} when the patch was fitted, {getattr(other, part)[:12] or 'unknown'} now"
        for part in differing
    )
    return f"This patch was fitted on another encoder that was called {name} too: {reasons} (sha256: {digests})."


def ready_patch(name: str) -> str | None:
    """The bundled patch of an encoder, by the encoder's name; ``None`` where there is none."""
    return name if name in BUNDLED else None


def remedy(encoder: DualEncoder) -> str:
    """What to do instead."""
    ready = ready_patch(encoder.name)
    return f"The patch of {encoder.name} is bundled: {ready!r}." if ready else "Fit a patch for this encoder."
