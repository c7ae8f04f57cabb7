"""Frozen dual encoders behind one interface (:class:`DualEncoder`)."""

from clipmend.backbones.base import DualEncoder, Fingerprint, PreparedTexts, TextStates

__all__ = ["DualEncoder", "Fingerprint", "PreparedTexts", "TextStates"]
