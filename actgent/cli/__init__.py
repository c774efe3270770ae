"""The command line: `actgent`."""

try:
    from .main import main
except KeyboardInterrupt:  # while libraries are loaded, before a command begins
    raise SystemExit(130) from None

__all__ = ["main"]
