"""What Python warns of, as who runs a command reads it."""

from __future__ import annotations

import importlib
import warnings

import pytest

from clipmend.search.arrays import UnnormalisedWarning


def test_a_warning_is_one_line_without_the_place_in_the_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("clipmend.cli.app")
    monkeypatch.setattr(module, "app", lambda: warnings.warn(UnnormalisedWarning("own.npy:\n  [bold]are long"), stacklevel=1))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        module.main()
    assert capsys.readouterr().err == "warning: own.npy: [bold]are long\n"
