"""Options that select a cluster: its journal and its name."""

import os

import attrs
from cyclopts import Parameter

from actgent.errors import ConfigurationError

JOURNAL_VARIABLE = "ACTGENT_JOURNAL"
"""Environment variable with the journal URL."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ClusterOptions:
    """Command-line options that select a cluster."""

    journal: str | None = None
    """Journal of the cluster: postgres://HOST/DATABASE. Default: the variable ACTGENT_JOURNAL, which process lists do not show.
    """
    cluster: str = "default"
    """Name of the cluster."""

    def journal_url(self) -> str:
        """Return the URL of the cluster's journal from the option or the environment variable.

        Raises:
            ConfigurationError: Neither the option nor the variable is set.
        """
        found = self.journal or os.environ.get(JOURNAL_VARIABLE)
        if not found:
            raise ConfigurationError(
                f"the journal of the cluster is not set: use --journal or the variable {JOURNAL_VARIABLE}"
            )
        return found
