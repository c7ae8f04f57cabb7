"""The ``clipmend`` command: one file a command, imported only when that command runs."""

from clipmend.cli.app import main

__all__ = ["main"]
