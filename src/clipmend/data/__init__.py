"""Captions, questions and images: records, readers, builders, and the drawn world (:mod:`clipmend.data.scenes`)."""

from clipmend.data.records import FALSE, TRUE, UNKNOWN, Caption, NegationData, Question, truth_matrix

__all__ = ["FALSE", "TRUE", "UNKNOWN", "Caption", "NegationData", "Question", "truth_matrix"]
