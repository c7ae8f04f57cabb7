"""Find a Chromium and its driver for the tests of the search page; where they are missing, install Debian's packages.

    python tools/install_browser.py            # install what is missing, as root on Debian, Ubuntu and their like
    python tools/install_browser.py --check    # only say what is there

``CHROME_BINARY`` and ``CHROMEDRIVER`` name others than those on the path. Nothing is downloaded but by apt-get. Debian's Inter is
installed too where that is possible: the page uses it where it is there, so that screenshots look alike everywhere.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
DRIVERS = ("chromedriver", "chromium.chromedriver")
PACKAGES = ("chromium", "chromium-driver")
FONT = "fonts-inter"

WAY_OUT = """no Chromium with a matching chromedriver was found, and it cannot be installed from here.
Install both and run this again:
  Debian, as root    apt-get update && apt-get install chromium chromium-driver
  Fedora             sudo dnf install chromium chromedriver
  Arch               sudo pacman -S chromium
  macOS              brew install --cask chromium chromedriver
  elsewhere          set CHROME_BINARY and CHROMEDRIVER to the two programs (their versions must match)"""


@dataclass(frozen=True)
class Browser:
    """A browser and the driver that steers it: paths of programs."""

    binary: str
    driver: str


def find() -> Browser | None:
    """The browser that tests use: of the environment's variables, else the first on the path."""
    binary = os.environ.get("CHROME_BINARY") or next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = os.environ.get("CHROMEDRIVER") or next(filter(None, map(shutil.which, DRIVERS)), None)
    return Browser(binary, driver) if binary and driver else None


def version(program: str) -> str:
    """What a program says of itself, or why it says nothing."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not run: {error}"
    return said.stdout.strip().splitlines()[0] if said.stdout.strip() else "says no version"


def may_install() -> bool:
    """Whether apt-get is there and this process may use it."""
    return shutil.which("apt-get") is not None and hasattr(os, "geteuid") and os.geteuid() == 0


def install() -> int:
    """Install the packages, and the font if it can be had; the exit status of the first step that failed, or 0."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    get = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
    for command in (["apt-get", "update", "-qq"], [*get, *PACKAGES]):
        print("$ " + " ".join(command), flush=True)
        code = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode
        if code:
            return code
    subprocess.run([*get, FONT], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="install nothing")
    options = parser.parse_args(arguments)
    found = find()
    if found is None and not options.check and may_install():
        code = install()
        if code:
            print(f"apt-get failed with exit status {code}\n{WAY_OUT}", file=sys.stderr)
            return 1
        found = find()
    if found is None:
        print(WAY_OUT, file=sys.stderr)
        return 1
    for program in (found.binary, found.driver):
        print(f"{program}: {version(program)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
