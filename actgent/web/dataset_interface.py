"""Interface of the datasets that a gateway shows: files of evaluation cases, and the history of their evaluations."""

import abc
from collections.abc import Sequence

from actgent.journal.journal_interface import Journal

from .json_response_types import DatasetCase, DatasetDocument, Evaluation, EvaluationSummary


class Datasets(abc.ABC):
    """Datasets of a gateway. `actgent.evaluation.DatasetFolder` implements it. All methods may be called concurrently."""

    @abc.abstractmethod
    async def datasets(self) -> Sequence[DatasetDocument]:
        """Return all datasets, by name."""

    @abc.abstractmethod
    async def cases(self, name: str) -> Sequence[DatasetCase] | None:
        """Return the cases of a dataset; None if it does not exist.

        Raises:
            ConfigurationError: The file has an invalid case.
        """

    @abc.abstractmethod
    async def add_session(
        self,
        name: str,
        journal: Journal,
        agent: str,
        session_id: str,
        *,
        message_id: str = "",
        expected: str = "",
    ) -> tuple[DatasetCase, bool]:
        """Append a session as a case. A missing dataset is created.

        Return the case, and False if the dataset has had exactly this case before.

        Args:
            name: Name of the dataset.
            journal: Journal of the session.
            agent: Name of the session's agent.
            session_id: Id of the session.
            message_id: Id of the last message of the case; empty uses the whole session.
            expected: Expected answer; empty uses the recorded answer, or the corrected answer of its rating.

        Raises:
            ConfigurationError: The session has no answer that can be expected, or the file has an invalid case.
            SessionExists: The dataset has another case of this name.
        """

    @abc.abstractmethod
    async def evaluations(self, name: str) -> Sequence[EvaluationSummary] | None:
        """Return the evaluations of a dataset, the latest first; None if the dataset does not exist."""

    @abc.abstractmethod
    async def evaluation(self, name: str, evaluation_id: str) -> Evaluation | None:
        """Return an evaluation, compared with the one before; None if it does not exist."""
