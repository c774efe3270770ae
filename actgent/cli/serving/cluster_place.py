"""Where a cluster is, as options or variables."""

import os

import attrs
from cyclopts import Parameter

from actgent.errors import ConfigurationError
from actgent.journal.membership import LEAVING_GRACE

JOURNAL, BROKER = "ACTGENT_JOURNAL", "ACTGENT_BROKER"
NODE_GRACE = LEAVING_GRACE + 10
"""Seconds that a node has after the first signal: for turns that run, and to hand over the rest."""


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class ClusterPlace:
    """Where a cluster is."""

    journal: str | None = None
    """postgresql://HOST/DATABASE; without it, the variable ACTGENT_JOURNAL."""
    broker: str | None = None
    """amqps://USER:PASSWORD@HOST/VHOST; without it, the variable ACTGENT_BROKER, which no list of processes shows."""
    pool: str = "default"
    """The nodes that host the same agents."""

    def journal_url(self) -> str:
        """The address of the journal.

        Raises:
            ConfigurationError: there is none.
        """
        return _given(self.journal, JOURNAL, "--journal")

    def broker_url(self) -> str:
        """The address of the broker.

        Raises:
            ConfigurationError: there is none.
        """
        return _given(self.broker, BROKER, "--broker")


def _given(value: str | None, variable: str, option: str) -> str:
    found = value or os.environ.get(variable)
    if not found:
        raise ConfigurationError(f"say where the cluster is: {option}, or the variable {variable}")
    return found
