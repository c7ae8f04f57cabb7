"""The helper that gives an environment its torch: what it accepts, and when it warns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import install_torch
import pytest


def item(name: str, url: str) -> dict:
    return {"metadata": {"name": name, "version": "1.0"}, "download_info": {"url": url}}


@pytest.mark.parametrize(
    ("found", "minimum", "good"),
    [
        ("2.13.0+cpu", "2.4", True),
        ("2.4.0", "2.4", True),
        ("2.3.1", "2.4", False),
        ("2.13.0+cu130", "", True),
        ("2.14.1", "", False),
    ],
)
def test_an_installed_torch_is_used_where_it_will_do(found: str, minimum: str, good: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install_torch, "version", lambda name: found)
    assert install_torch.installed("torch==2.13.0", minimum) == (found if good else None)


def test_no_torch() -> None:
    assert install_torch.installed("no-such-package-as-this==1", "1") is None


def test_warns_of_gigabytes_and_of_nothing_else() -> None:
    assert install_torch.announcement([item("torch", "file:///w/torch.whl"), item("sympy", "https://example.org/s.whl")]) is None
    assert "downloads a GPU build" in install_torch.announcement([item("nvidia-cublas", "https://example.org/n.whl")])
    assert "unpacks from this disk" in install_torch.announcement([item("nvidia-cublas", "file:///n.whl")])


def test_nothing_is_installed_where_torch_is_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["install_torch.py", "torch==2.13.0", "--minimum", "2.4"])
    monkeypatch.setattr(install_torch.subprocess, "run", lambda *a, **k: pytest.fail("pip was called"))
    assert install_torch.main() == 0
    assert "used as it is" in capsys.readouterr().out


@pytest.mark.slow
def test_an_environment_shares_this_interpreters_packages_or_does_not(tmp_path: Path) -> None:
    script = Path(install_torch.__file__).with_name("make_environment.py")

    def sees_torch(choice: str) -> bool:
        folder = tmp_path / choice
        subprocess.run([sys.executable, str(script), str(folder), "--system-torch", choice], check=True, capture_output=True)
        return subprocess.run([str(folder / "bin" / "python"), "-c", "import torch"], capture_output=True).returncode == 0

    # The tests need torch, so this interpreter has one: auto finds it, even where this interpreter is of an environment itself.
    assert sees_torch("auto")
    assert not sees_torch("no")
