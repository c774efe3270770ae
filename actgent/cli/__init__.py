"""The command line: `actgent`."""

import sys

_PACKAGES = {"cyclopts", "rich", "prompt_toolkit"}

try:
    from .main import main
except KeyboardInterrupt:  # while libraries are loaded, before a command begins
    raise SystemExit(130) from None
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in _PACKAGES:
        raise
    sys.stderr.write(
        f"actgent: {error.name} is missing, and the command needs the extra: pip install 'actgent[cli]'\n"
    )
    raise SystemExit(2) from None

__all__ = ["main"]
