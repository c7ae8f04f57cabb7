"""The tool that finds Chromium, or installs it where it may, or says how."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import install_browser
import pytest


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A machine on which nothing is there, nobody is root, and apt-get only pretends."""
    state: dict[str, Any] = {"programs": {}, "root": False, "ran": [], "brings": {}, "fails": ""}

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        state["ran"].append(command[:2])
        if command[:2] == ["apt-get", "install"] and state["fails"] != "install":
            state["programs"].update(state["brings"])
        failed = command[0] == "apt-get" and command[1] == state["fails"]
        return subprocess.CompletedProcess(command, 100 if failed else 0, stdout="Chromium 1\n")

    for name in ("CHROME_BINARY", "CHROMEDRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(install_browser.shutil, "which", lambda name: state["programs"].get(name))
    monkeypatch.setattr(install_browser.os, "geteuid", lambda: 0 if state["root"] else 1000, raising=False)
    monkeypatch.setattr(install_browser.subprocess, "run", run)
    return state


def test_what_is_there_is_found_and_nothing_installed(machine: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    machine["programs"] = {"google-chrome": "/bin/chrome", "chromedriver": "/bin/driver", "apt-get": "/bin/apt-get"}
    machine["root"] = True
    assert install_browser.main([]) == 0
    assert machine["ran"] == [["/bin/chrome", "--version"], ["/bin/driver", "--version"]]
    assert "/bin/chrome: Chromium 1" in capsys.readouterr().out


def test_the_environment_goes_first(machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine["programs"] = {"chromium": "/bin/chromium", "chromedriver": "/bin/driver"}
    monkeypatch.setenv("CHROME_BINARY", str(tmp_path / "mine"))
    assert install_browser.find() == install_browser.Browser(str(tmp_path / "mine"), "/bin/driver")


def test_root_installs(machine: dict[str, Any]) -> None:
    machine.update(root=True, programs={"apt-get": "/bin/apt-get"}, brings={"chromium": "/c", "chromedriver": "/d"})
    assert install_browser.main([]) == 0
    assert machine["ran"][:2] == [["apt-get", "update"], ["apt-get", "install"]]


@pytest.mark.parametrize(
    ("root", "apt", "arguments", "fails"),
    [
        (False, True, [], ""),
        (True, False, [], ""),
        (True, True, ["--check"], ""),
        (True, True, [], "install"),
        (True, True, [], "update"),
    ],
)
def test_the_way_out_is_told(
    machine: dict[str, Any], root: bool, apt: bool, arguments: list[str], fails: str, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.update(root=root, programs={"apt-get": "/bin/apt-get"} if apt else {}, brings={"chromium": "/c", "chromedriver": "/d"})
    machine["fails"] = fails
    assert install_browser.main(arguments) == 1
    assert "apt-get install chromium chromium-driver" in capsys.readouterr().err
    assert bool(machine["ran"]) == bool(fails)
