"""Frozen dual encoders behind one interface (:class:`DualEncoder`)."""

from clipmend.backbones.activation import ActivationWarning
from clipmend.backbones.base import DualEncoder, Fingerprint, PreparedTexts, TextStates
from clipmend.backbones.loading import load
from clipmend.backbones.text import TextAndImageEncoder, TextOnlyEncoder, TextTower

__all__ = [
    "ActivationWarning",
    "DualEncoder",
    "Fingerprint",
    "PreparedTexts",
    "TextAndImageEncoder",
    "TextOnlyEncoder",
    "TextStates",
    "TextTower",
    "load",
]
