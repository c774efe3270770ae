"""The MCP conformance suite from npm."""

from tests.interop.node.npm import MODULES

SUITE = MODULES / "@modelcontextprotocol" / "conformance"
PROGRAM = SUITE / "dist" / "index.js"
MISSING = "the suite from npm is not installed: `make test` does that"


def scenarios_of(revision, leg):
    """Return the scenarios that the suite requires of clients or servers of a revision."""
    lines = (SUITE / "requirements" / f"{revision}.yaml").read_text(encoding="utf-8").splitlines()
    listed = lines[lines.index(f"{leg}:") + 1 :]
    end = next(index for index, line in enumerate(listed) if line.rstrip().endswith(":") and line[0] != " ")
    return {line.removeprefix("  - ") for line in listed[:end] if line.startswith("  - ")}
