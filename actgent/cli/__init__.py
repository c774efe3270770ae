"""Command-line program `actgent`."""

import sys

_PACKAGES = {"cyclopts", "rich", "prompt_toolkit"}
"""Packages of the extra `cli`; an ImportError of any other package is a bug and is raised."""

try:
    from .main import main
except KeyboardInterrupt:  # Ctrl-C during the imports, before any command runs
    raise SystemExit(130) from None
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in _PACKAGES:
        raise
    sys.stderr.write(
        f"actgent: package {error.name} is not installed; the command line needs the extra: pip install 'actgent[cli]'\n"
    )
    raise SystemExit(2) from None

__all__ = ["main"]
