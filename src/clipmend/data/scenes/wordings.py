"""How a text can say that something is not there.

A :class:`Wording` is one phrase of negation with templates for each use. Placeholders: ``{x}`` singular noun (with any adjective),
``{xs}`` plural, ``{a}`` with its article, ``{y}``, ``{ys}``, ``{b}`` the same for a second noun, ``{pos}`` what is there.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALL_WORDINGS", "RESERVED_PATTERN", "RESERVED_WORDINGS", "WORDINGS", "Wording"]


@dataclass(frozen=True, slots=True)
class Wording:
    """One way to deny.

    Args:
        name: identifier, as it stands in the tables.
        sentences: whole captions that deny and assert nothing.
        hybrids: captions that assert ``{pos}`` and deny.
        queries: noun phrases as typed into an image search; ``{place}`` is a noun such as "a photo" or "a beach".
        kinds: how many things one phrase denies.
        reserved: kept out of every training text.
    """

    name: str
    sentences: tuple[str, ...]
    hybrids: tuple[str, ...]
    queries: tuple[str, ...]
    kinds: int = 1
    reserved: bool = False


def _training() -> tuple[Wording, ...]:
    return (
        Wording(
            "no",
            ("no {x}", "a photo with no {x}", "an image of no {x}"),
            ("{pos} but no {x}", "{pos} and no {x}", "{pos}, no {x}", "{pos} with no {x}"),
            ("{place} with no {x}",),
        ),
        Wording(
            "no plural",
            ("no {xs}", "a picture with no {xs}", "no {xs} here"),
            ("{pos} but no {xs}", "{pos} and no {xs}", "{pos}, no {xs}"),
            ("{place} with no {xs}",),
        ),
        Wording(
            "without",
            ("a photo without {a}", "a scene without {a}", "an image without {a}"),
            ("{pos} without {a}", "{pos}, without {a}", "a photo of {pos} but without {a}"),
            ("{place} without {a}",),
        ),
        Wording(
            "without any",
            ("a picture without any {xs}", "without any {xs}"),
            ("{pos} without any {xs}", "{pos}, but without any {xs}"),
            ("{place} without any {xs}",),
        ),
        Wording(
            "there is no",
            ("there is no {x}", "there is no {x} in this image", "there is no {x} here"),
            ("{pos}, but there is no {x}", "{pos}. there is no {x}"),
            ("{place} where there is no {x}",),
        ),
        Wording(
            "there are no",
            ("there are no {xs}", "there are no {xs} in the picture"),
            ("{pos}, but there are no {xs}", "{pos}, and there are no {xs}"),
            ("{place} where there are no {xs}",),
        ),
        Wording(
            "not any",
            ("there are not any {xs}", "not any {xs} in this photo"),
            ("{pos}, but not any {xs}", "{pos}, and there are not any {xs}"),
            ("{place} with not any {xs}",),
        ),
        Wording(
            "there isn't",
            ("there isn't {a}", "there isn't {a} in the image"),
            ("{pos}, but there isn't {a}", "{pos}, and there isn't {a}"),
            ("{place} where there isn't {a}",),
        ),
        Wording(
            "not present",
            ("{a} is not present", "{a} is not present in this image"),
            ("{pos}, and {a} is not present", "{pos}, but {a} is not present"),
            ("{place} where {a} is not present",),
        ),
        Wording(
            "does not feature",
            ("this image does not feature {a}", "the picture does not feature {a}"),
            ("this image features {pos}, but does not feature {a}", "{pos}, but it does not feature {a}"),
            ("{place} that does not feature {a}",),
        ),
        Wording(
            "does not include",
            ("this image does not include {a}", "the scene does not include any {xs}"),
            ("this image includes {pos}, but does not include {a}", "{pos}, but it does not include {a}"),
            ("{place} that does not include {a}",),
        ),
        Wording(
            "does not show",
            ("the picture does not show {a}", "this photo does not show any {xs}"),
            ("the picture shows {pos}, but does not show {a}", "{pos}, but it does not show {a}"),
            ("{place} that does not show {a}",),
        ),
        Wording(
            "does not contain",
            ("the image does not contain {a}", "this scene does not contain any {xs}"),
            ("the image contains {pos}, but does not contain {a}", "{pos}, but it does not contain {a}"),
            ("{place} that does not contain {a}",),
        ),
        Wording(
            "doesn't have",
            ("this picture doesn't have {a}", "the scene doesn't have {a} in it"),
            ("the scene has {pos}, but doesn't have {a}", "{pos}, but it doesn't have {a}"),
            ("{place} that doesn't have {a}",),
        ),
        Wording(
            "cannot see",
            ("you cannot see {a}", "you cannot see any {xs} here"),
            ("{pos}, but you cannot see {a}", "you can see {pos}, but you cannot see {a}"),
            ("{place} where you cannot see {a}",),
        ),
        Wording(
            "never",
            ("never {a}", "the picture never shows {a}"),
            ("{pos}, never {a}", "{pos}, but never {a}"),
            ("{place} that never shows {a}",),
        ),
        Wording(
            "missing",
            ("the {x} is missing", "{a} is missing from this picture"),
            ("{pos}, with the {x} missing", "{pos}, but {a} is missing"),
            ("{place} where the {x} is missing",),
        ),
        Wording(
            "not a",
            ("not {a}", "this is not {a}", "a photo of something, not {a}"),
            ("{pos}, not {a}", "{pos}, but not {a}", "this image features {pos}, but not {a}"),
            ("{place}, but not {a}",),
        ),
        Wording(
            "not a single",
            ("not a single {x}", "there is not a single {x} here"),
            ("{pos}, but not a single {x}", "{pos} and not a single {x}"),
            ("{place} with not a single {x}",),
        ),
        Wording(
            "no sign of",
            ("no sign of {a}", "there is no sign of {a} in the picture"),
            ("{pos}, but no sign of {a}", "{pos}, with no sign of {a}"),
            ("{place} with no sign of {a}",),
        ),
        Wording(
            "zero",
            ("zero {xs}", "a photo with zero {xs}"),
            ("{pos} and zero {xs}", "{pos}, but zero {xs}"),
            ("{place} with zero {xs}",),
        ),
        Wording(
            "no visible",
            ("no {x} is visible", "no {x} can be seen in this photo"),
            ("{pos}, but no {x} is visible", "{pos}, and no {x} can be seen"),
            ("{place} where no {x} is visible",),
        ),
        Wording(
            "is not in",
            ("{a} is not in the picture", "{a} is not in this photo"),
            ("{pos}, and {a} is not in the picture", "{pos}, but {a} is not there"),
            ("{place}, and {a} is not in it",),
        ),
        Wording(
            "leaves out",
            ("the picture leaves out {a}", "the drawing leaves out the {x}"),
            ("the picture shows {pos} and leaves out {a}", "{pos}, leaving out the {x}"),
            ("{place} that leaves out {a}",),
        ),
        Wording(
            "empty of",
            ("a photo empty of {xs}", "this image is empty of {xs}"),
            ("{pos}, empty of {xs}", "a scene with {pos} but empty of {xs}"),
            ("{place} empty of {xs}",),
        ),
        Wording(
            "clear of",
            ("a picture clear of {xs}", "the scene is clear of any {x}"),
            ("{pos}, clear of {xs}", "{pos}, clear of any {x}"),
            ("{place} clear of {xs}",),
        ),
        Wording(
            "minus",
            ("a photo minus {a}", "an image minus the {x}"),
            ("{pos} minus {a}", "{pos}, minus the {x}"),
            ("{place} minus {a}",),
        ),
        Wording(
            "excluding",
            ("a picture excluding {xs}", "the image excludes {xs}"),
            ("{pos}, excluding {xs}", "the photo shows {pos} and excludes {xs}"),
            ("{place} excluding {xs}",),
        ),
        Wording(
            "omits",
            ("the picture omits {a}", "a photo omitting {a}"),
            ("{pos}, omitting {a}", "the picture shows {pos} and omits {a}"),
            ("{place} that omits {a}",),
        ),
        Wording(
            "has no",
            ("this photo has no {x}", "the scene has no {xs}"),
            ("the scene has {pos} but has no {x}", "{pos}, but it has no {x}"),
            ("{place} that has no {x}",),
        ),
        Wording(
            "aren't any",
            ("there aren't any {xs}", "there aren't any {xs} in the photo"),
            ("{pos}, but there aren't any {xs}", "{pos}, and there aren't any {xs}"),
            ("{place} where there aren't any {xs}",),
        ),
        Wording(
            "will not find",
            ("you will not find {a} here", "you won't find any {xs} in this picture"),
            ("{pos}, but you will not find {a}", "{pos}, but you won't find any {xs}"),
            ("{place} in which you won't find {a}",),
        ),
        Wording(
            "no or",
            ("no {x} or {y}", "a photo without {a} or {b}", "there is no {x} and no {y}"),
            ("{pos} but no {x} or {y}", "{pos} without {a} or {b}", "{pos}, no {x} and no {y}"),
            ("{place} without {a} or {b}", "{place} with no {x} and no {y}"),
            kinds=2,
        ),
    )


def _reserved() -> tuple[Wording, ...]:
    return (
        Wording(
            "devoid of",
            ("a photo devoid of {xs}", "this image is devoid of any {x}"),
            ("{pos}, devoid of {xs}", "a scene of {pos} but devoid of {xs}"),
            ("{place} devoid of {xs}",),
            reserved=True,
        ),
        Wording(
            "free of",
            ("a picture free of {xs}", "this scene is free of {xs}"),
            ("{pos}, free of {xs}", "a scene of {pos} but free of {xs}"),
            ("{place} free of {xs}",),
            reserved=True,
        ),
        Wording(
            "lacking",
            ("a photo lacking {a}", "this image is lacking {a}"),
            ("{pos}, lacking {a}", "a picture of {pos} but lacking {a}"),
            ("{place} lacking {a}",),
            reserved=True,
        ),
        Wording(
            "absent",
            ("the {x} is absent", "{a} is absent from this image"),
            ("{pos}, with {a} absent", "{pos}, but {a} is absent"),
            ("{place} where {a} is absent",),
            reserved=True,
        ),
        Wording(
            "nowhere",
            ("{a} is nowhere to be seen", "the {x} is nowhere in this picture"),
            ("{pos}, and {a} is nowhere to be seen", "{pos}, but the {x} is nowhere to be found"),
            ("{place} where {a} is nowhere to be seen",),
            reserved=True,
        ),
        Wording(
            "sans",
            ("a photo sans {x}", "an image sans {xs}"),
            ("{pos} sans {x}", "{pos}, sans {xs}"),
            ("{place} sans {x}",),
            reserved=True,
        ),
        Wording(
            "neither nor",
            ("neither {a} nor {b}", "a photo with neither {a} nor {b}"),
            ("{pos}, but neither {a} nor {b}", "{pos} with neither {a} nor {b}"),
            ("{place} with neither {a} nor {b}",),
            kinds=2,
            reserved=True,
        ),
        Wording(
            "everything except",
            ("everything except {a}", "a photo of everything except {a}"),
            ("{pos}, everything except {a}", "{pos} and everything else except {a}"),
            ("{place} with everything except {a}",),
            reserved=True,
        ),
    )


WORDINGS: dict[str, Wording] = {wording.name: wording for wording in _training()}
"""Wordings of negation that training texts use."""

RESERVED_WORDINGS: dict[str, Wording] = {wording.name: wording for wording in _reserved()}
"""Wordings that no training text uses in any role."""

ALL_WORDINGS: dict[str, Wording] = WORDINGS | RESERVED_WORDINGS

RESERVED_PATTERN = r"\b(devoid|free of|lack|lacks|lacking|absent|absence|nowhere|sans|neither|nor|except)\b"
"""Regular expression (ignore case) that finds a reserved wording in a text."""
