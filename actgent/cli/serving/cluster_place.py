"""The journal and the name of a cluster, as options or variables."""

import os

import attrs
from cyclopts import Parameter

from actgent.errors import ConfigurationError

JOURNAL = "ACTGENT_JOURNAL"


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ClusterPlace:
    """The journal and the name of a cluster."""

    journal: str | None = None
    """postgres://HOST/DATABASE; without it, the variable ACTGENT_JOURNAL, which no list of processes shows."""
    cluster: str = "default"
    """Name of the cluster, as its nodes have it."""

    def journal_url(self) -> str:
        """Return the address of the journal.

        Raises:
            ConfigurationError: Neither the option nor the variable is set.
        """
        found = self.journal or os.environ.get(JOURNAL)
        if not found:
            raise ConfigurationError(f"name the journal of the cluster: --journal, or the variable {JOURNAL}")
        return found
