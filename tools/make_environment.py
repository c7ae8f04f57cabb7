"""Make a virtual environment that sees the torch of the interpreter that runs this, if that has one which will do.

    python3 tools/make_environment.py .venv --minimum 2.4 [--system-torch auto|yes|no]

``auto`` shares the interpreter's packages only where there is such a torch; ``no`` never does. An environment that exists is left
as it is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
from pathlib import Path

from install_torch import installed


def make(folder: Path, share: bool) -> int:
    """Make the environment, sharing this interpreter's packages or not; the exit code of the venv module."""
    code = subprocess.run([sys.executable, "-m", "venv", *(["--system-site-packages"] if share else []), str(folder)]).returncode
    if code == 0 and share and sys.prefix != sys.base_prefix:
        # This interpreter is of an environment itself, and "system" means the one below it: a path file adds ours.
        there = [str(folder / "bin" / "python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        site = subprocess.run(there, check=True, capture_output=True, text=True).stdout.strip()
        Path(site, "shared-with.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minimum", default="2.4", help="the oldest torch that will do")
    parser.add_argument("--system-torch", choices=("auto", "yes", "no"), default="auto")
    arguments = parser.parse_args()
    if (arguments.folder / "bin" / "python").exists():
        return 0
    found = installed("torch", arguments.minimum)
    share = arguments.system_torch == "yes" or (arguments.system_torch == "auto" and found is not None)
    if share:
        print(f"{sys.executable} has torch {found}: {arguments.folder} sees its packages", flush=True)
    return make(arguments.folder, share)


if __name__ == "__main__":
    sys.exit(main())
