"""Guidance: where a negated caption's embedding should roughly go, from its logical form and the backbone's own vectors.

With the true parse of a caption at hand, plain arithmetic already does much: "a cup but no cat" is near the cup and away from the
cat. The correction network has no parse; it is shown where the arithmetic would put each training caption, and so learns to parse.
The contrastive objective then goes beyond it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from clipmend.backbones.base import DualEncoder
from clipmend.data.phrases import photo_of, without_implied
from clipmend.data.records import Caption

__all__ = ["guidance_targets", "kept_guidance"]


def guidance_targets(
    encoder: DualEncoder, captions: Sequence[Caption], hybrid_strength: float = 0.6, progress: bool = False
) -> Tensor:
    """Target embeddings of captions that deny something.

    With ``a`` the embedding of "a photo of X" for an atom, and ``m`` the mean over the atoms that some of the captions assert (over
    all, where none does):

    - a caption that only denies: ``normalize(m - sum(a - m))``, the denied things reflected at the mean;
    - one that asserts too: ``normalize(p - hybrid_strength * sum(a - m))``, ``p`` the embedding of "a photo of" all that it asserts
      (one phrase keeps which colour belongs to which thing; a sum of single things does not).

    Args:
        encoder: the backbone.
        captions: ``M`` captions with their logical form.
        hybrid_strength: how far a hybrid caption moves from what it denies.
        progress: show a progress bar while atoms are embedded.

    Returns:
        float32 ``[M, D]``, unit rows; zero rows for captions that deny nothing.
    """
    denying = [(row, caption) for row, caption in enumerate(captions) if caption.denies]
    asserted = {row: photo_of(caption.asserts) for row, caption in denying if caption.asserts}
    atoms = sorted({a for _, caption in denying for a in (*caption.denies, *without_implied(caption.asserts))})
    targets = torch.zeros(len(captions), encoder.embed_dim)
    if not atoms:
        return targets
    texts = list(dict.fromkeys([*(photo_of([atom]) for atom in atoms), *asserted.values()]))
    vectors = encoder.encode_texts(texts, progress=progress)
    place = {text: k for k, text in enumerate(texts)}
    single = vectors[[place[photo_of([atom])] for atom in atoms]]  # [A, D]
    number = {atom: k for k, atom in enumerate(atoms)}
    spoken = sorted(number[a] for a in {a for _, caption in denying for a in without_implied(caption.asserts)})
    mean = single[spoken].mean(0) if spoken else single.mean(0)
    for row, caption in denying:
        away = (single[[number[a] for a in caption.denies]] - mean).sum(0)
        if row in asserted:
            targets[row] = vectors[place[asserted[row]]] - hybrid_strength * away
        else:
            targets[row] = mean - away
    return F.normalize(targets, dim=-1)


def kept_guidance(
    encoder: DualEncoder, captions: Sequence[Caption], hybrid_strength: float, stem: Path | None, progress: bool = False
) -> Tensor:
    """:func:`guidance_targets`, kept in a file: ``stem`` with a digest of the encoder, the strength and the captions' logical form.

    Args:
        encoder, captions, hybrid_strength, progress: as there.
        stem: path of the file but for digest and ending; ``None`` keeps nothing.
    """
    if stem is None:
        return guidance_targets(encoder, captions, hybrid_strength, progress)
    told = [(c.asserts, c.denies) for c in captions]
    key = hashlib.sha256(repr((encoder.fingerprint.text, hybrid_strength, told)).encode()).hexdigest()
    path = stem.with_name(f"{stem.name}-{key[:16]}.safetensors")
    if path.exists():
        return load_file(path)["targets"]
    targets = guidance_targets(encoder, captions, hybrid_strength, progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    try:
        save_file({"targets": targets}, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return targets
