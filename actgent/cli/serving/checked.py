"""Whether the agents of a target can be made, as a process of its own that `actgent serve --reload` asks."""

import sys

from actgent.cli.folders import agents_at
from actgent.errors import ConfigurationError, InvalidFolder


def main() -> None:
    """Make the agents of the first argument, with `--offline` without models; exit with their error and code 1."""
    try:
        agents_at(sys.argv[1], offline="--offline" in sys.argv[2:])
    except ConfigurationError as error:
        problems = error.problems if isinstance(error, InvalidFolder) else (error,)
        sys.exit("; ".join(map(str, problems)))
