"""The command line: `actgent demo` and `actgent chat`."""

from .main import main

__all__ = ["main"]
