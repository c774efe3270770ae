"""`Gateway`, and the interfaces of parts of a gateway that other packages implement: datasets and interoperability protocols."""

import abc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from actgent.journal.journal_interface import Journal

from .json_response_types import DatasetCase, DatasetDocument, Evaluation, EvaluationSummary

ASGIApplication = Callable[[Any, Any, Any], Awaitable[None]]


class Gateway:
    """A running gateway: its ASGI application, URL, admin token and login link."""

    def __init__(
        self,
        app: ASGIApplication,
        *,
        key: str | None,
        login: str | None,
        url: str | None,
        count: Callable[[], int] = int,
    ) -> None:
        self.app = app
        """ASGI application, which can be mounted in another application on trio."""
        self.key = key
        """Admin token that is valid until the gateway closes; None if tokens were passed to `open_gateway`."""
        self.url = url
        """Base URL without a slash at the end; None if the gateway does not listen (`bind=None`)."""
        self._login = login
        self._count = count

    def __repr__(self) -> str:
        return f"<Gateway at {self.url or 'no address'}>"

    @property
    def link(self) -> str | None:
        """URL of the dashboard with a one-time login key in its fragment; None if the gateway does not listen.

        Browsers do not send the fragment to servers. The key is missing if tokens were passed to `open_gateway`.
        """
        return self.url if self.url is None or self._login is None else f"{self.url}/#key={self._login}"

    @property
    def connections(self) -> int:
        """Number of open HTTP connections."""
        return self._count()


class ExternalProtocol(Protocol):
    """HTTP protocol of another product, such as the OpenAI API, that a gateway serves in addition to its own API."""

    @property
    def name(self) -> str:
        """Name of the protocol on the command line, for `actgent serve --protocols`."""

    @property
    def title(self) -> str:
        """Name of the protocol in texts for users."""

    @property
    def address(self) -> str:
        """URL path that users enter in their client, for example as base URL."""

    @property
    def background(self) -> Callable[[Any], Awaitable[object]] | None:
        """Function that is called with the `GatewayContext` when the gateway opens; None if there is nothing to start."""

    @property
    def endpoints(self) -> Sequence[Any]:
        """Endpoints of the protocol (`web.routes.endpoints.Endpoint`), with full URL paths."""


class Datasets(abc.ABC):
    """Interface of the evaluation datasets of a gateway. All methods may be called concurrently.

    `actgent.evaluation.DatasetFolder` implements it.
    """

    @abc.abstractmethod
    async def datasets(self) -> Sequence[DatasetDocument]:
        """Return all datasets, ordered by name."""

    @abc.abstractmethod
    async def cases(self, name: str) -> Sequence[DatasetCase] | None:
        """Return the evaluation cases of a dataset; None if the dataset does not exist.

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
        """Append a session as an evaluation case to a dataset. A missing dataset is created.

        Return the case, and True if it was appended, False if the dataset already has this case.

        Args:
            name: Name of the dataset.
            journal: Journal of the session.
            agent: Name of the session's agent.
            session_id: Id of the session.
            message_id: Id of the message with which the case ends; empty uses the whole session.
            expected: Expected answer of the case; empty uses the recorded answer, or the corrected answer in its rating.

        Raises:
            ConfigurationError: The session has no answer that can be expected, or the file has an invalid case.
            SessionExists: The dataset has a different case with the same name.
        """

    @abc.abstractmethod
    async def replace_case(
        self, name: str, case_name: str, version: str, case: Mapping[str, Any] | None
    ) -> DatasetCase | None:
        """Replace a case of a dataset, or remove it if `case` is None. Return the new case; None if it was removed.

        Args:
            name: Name of the dataset.
            case_name: Name of the case, as `cases` returns it.
            version: Version of the case that the caller has read. The call fails if the case was changed since.
            case: New content of the case; None removes the case.

        Raises:
            LookupError: The dataset has no case with this name.
            UsageError: The case has another version, or another case has the new name.
            ConfigurationError: The new case or the file is invalid.
        """

    @abc.abstractmethod
    async def evaluations(self, name: str) -> Sequence[EvaluationSummary] | None:
        """Return the evaluations of a dataset, the latest first; None if the dataset does not exist."""

    @abc.abstractmethod
    async def evaluation(self, name: str, evaluation_id: str) -> Evaluation | None:
        """Return an evaluation, compared with the previous evaluation; None if it does not exist."""
