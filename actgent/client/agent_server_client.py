"""`Client` and `connect`: access to the agents and sessions of a server, over any transport."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, TypeVar

import attrs
import trio

from actgent.actors.dead_letters import DeadLetter
from actgent.actors.event_loop_check import check_loop
from actgent.approvals import Approval
from actgent.errors import SessionNotFound, UsageError
from actgent.errors.text_escaping import quoted
from actgent.journal.cluster_interface import ClusterStatus, NodeStatus, PartitionStatus, PoolLayout
from actgent.journal.journal_interface import SessionSummary
from actgent.limits_and_schedules.id_and_number_validation import check_seconds
from actgent.messages import Sender, ToolSpec
from actgent.runtime.agent_directory import AgentCard
from actgent.runtime.waits_between_sessions import ANY_SESSION, add_remote_label
from actgent.session_index import Group, SearchFilter, SearchPage, Trends
from actgent.sessions.session_context import Status
from actgent.support.unknown_name_hints import async_block
from actgent.toolsets.toolset_manager import ToolsetStatus

from .event_subscription import ServerLink
from .http.http_transport import HTTPTransport
from .json_conversion import to_approval, to_seconds
from .remote_agent import RemoteAgent
from .request_bodies import annotation_query
from .request_sender import RequestSender
from .search_json_conversion import search_query, to_search_page, to_trends, trends_query
from .session_operations import SessionOperations, to_summary
from .transport_interface import RemoteRequest, Transport

T = TypeVar("T")


def to_cluster_status(document: Mapping[str, Any]) -> ClusterStatus:
    """Convert the JSON of a cluster to a `ClusterStatus`."""
    partitions = document["partitions"]
    return ClusterStatus(
        layout=PoolLayout(
            generation=document["generation"], partitions=len(partitions), writes=document["record_format"]
        ),
        nodes=[_from_document(NodeStatus, each, agents=tuple(each["agents"])) for each in document["nodes"]],
        partitions=[
            _from_document(
                PartitionStatus, each, since=datetime.fromtimestamp(to_seconds(each["since"]), UTC)
            )
            for each in partitions
        ],
        unhosted=document["unhosted"],
        suspects=document["suspects"],
        dead=document["dead"],
    )


def to_toolset_status(document: Mapping[str, Any]) -> ToolsetStatus:
    """Convert the JSON of a toolset to a `ToolsetStatus`."""
    return _from_document(
        ToolsetStatus,
        document,
        agents=tuple(document["agents"]),
        tools=tuple(_from_document(ToolSpec, each) for each in document["tools"]),
        failed_at=None if document["failed_at"] is None else to_seconds(document["failed_at"]),
    )


def _from_document(cls: type[T], document: Mapping[str, Any], **converted: Any) -> T:
    """Create an object of class `cls` from the fields of a JSON document. Unknown fields of newer servers are ignored.

    `converted` are fields that are already converted from JSON.
    """
    names = [field.name for field in attrs.fields(cls)]  # type: ignore[arg-type]  # attrs classes have no common base
    return cls(**{name: document[name] for name in names} | converted)


EVERYTHING = SearchFilter()
DEFAULT_RETRY_TIMEOUT_SECONDS = 30.0
"""Default of `retry_timeout`: number of seconds for which a request is retried."""


class Client(SessionOperations):
    """Client of a server, with access to its agents and sessions. `connect` opens a client."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link

    def __actgent_link__(self) -> ServerLink:
        """Return the request sender and nursery that the client's sessions use; only for gateways and cluster nodes."""
        return self._link

    def __repr__(self) -> str:
        return f"<Client of {self._link.requests.transport!r}>"

    def agent(self, name: str) -> RemoteAgent:
        """Return a `RemoteAgent` with this name, without asking the server. The first request to it raises if it does not run."""
        return RemoteAgent(self._link, name)

    async def agents(self) -> tuple[AgentCard, ...]:
        """Request the card (name, role, goal, capabilities, models) of each agent that runs on the server."""
        page = await self._link.requests.send(RemoteRequest(operation="list_agents"))
        return tuple(_from_document(AgentCard, each) for each in page["items"])

    async def sessions(
        self,
        *,
        owner: str | None = None,
        agent: str | None = None,
        state: Status | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
        prefix: str = "",
        limit: int = 100,
    ) -> tuple[SessionSummary, ...]:
        """Return summaries of the sessions that the token may access and that match all filters, last changed first.

        At most `limit` are returned. `prefix` matches the beginning of the session id or of the owner. A session matches `tags`
        and `metadata` if it has all tags and all values. Another owner than the token's requires the scope admin.
        """
        filters = {"owner": owner, "agent": agent, "status": state, "q": prefix or None}
        query: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
        query |= annotation_query(tags, metadata)
        found: list[SessionSummary] = []
        after: str | None = ""
        while after is not None and len(found) < limit:
            position = {"after": after} if after else {}
            request = RemoteRequest(
                operation="list_sessions", query={**query, **position, "limit": min(500, limit - len(found))}
            )
            page = await self._link.requests.send(request)
            found += [to_summary(each) for each in page["items"]]
            after = page["next"]
        return tuple(found)

    async def search(
        self, query: str, filters: SearchFilter = EVERYTHING, *, after: str | None = None, limit: int = 20
    ) -> SearchPage:
        """Return the newest messages that contain all words of a query, from the sessions that the token may access.

        The query may have phrases in quotes, prefixes with `*` and excluded words with `-`. Another owner than the token's
        requires the scope admin.

        Args:
            query: Words to search for; an empty text matches all messages.
            filters: Conditions on messages and sessions.
            after: `following` of the previous page; None returns the first page.
            limit: Maximum number of hits.

        Raises:
            ConfigurationError: The server has no index, or the query has text but no word.
            PermissionDenied: The token may not search for another owner.
        """
        request = RemoteRequest(operation="find_messages", query=search_query(query, filters, after, limit))
        page = to_search_page(await self._link.requests.send(request))
        add_remote_label(ANY_SESSION)
        return page

    async def trends(
        self,
        by: Group = "day",
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        owner: str | None = None,
        model: str | None = None,
    ) -> Trends:
        """Return cost, tokens, turns, durations, errors and tool failures by day, agent, model or owner.

        Without the scope admin, only the owner of the token counts.

        Args:
            by: Dimension of the groups.
            since: Unix time in seconds; only the days from this time on count, in UTC.
            until: Unix time in seconds; only the days up to this time count, in UTC.
            agent: Name of an agent; None counts all agents.
            owner: Name of an owner; None counts all owners whose sessions the token may access.
            model: Name of a model; None counts all models.

        Raises:
            ConfigurationError: The server has no index, or `by` is unknown.
            PermissionDenied: The token may not read the trends of another owner.
        """
        query = trends_query(by, since=since, until=until, agent=agent, owner=owner, model=model)
        return to_trends(await self._link.requests.send(RemoteRequest(operation="get_trends", query=query)))

    async def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Return the messages that no agent or actor of the server processed, oldest first. Requires the scope admin.

        The payload of each `DeadLetter` is the text of the message.
        """
        page = await self._link.requests.send(RemoteRequest(operation="get_dead_letters"))
        add_remote_label(ANY_SESSION)
        return tuple(map(_to_dead_letter, reversed(page["items"])))

    async def send_again(self, letter: DeadLetter) -> None:
        """Send a dead letter to its agent or actor again. An accepted letter is removed from the list. Requires the scope admin.

        Raises:
            SessionNotFound: The letter was already sent again, or newer letters have replaced it.
            NotRunning: No agent or actor of this name runs on the server.
        """
        await self._link.requests.send(RemoteRequest(operation="send_dead_letter", part=letter.id))

    async def cluster_status(self) -> ClusterStatus | None:
        """Return the nodes and partitions of the server's cluster, and the agents that no node hosts. Requires the scope admin.

        Return None if the server is not in a cluster.
        """
        answer = await self._link.requests.send(RemoteRequest(operation="get_cluster"))
        return None if answer["cluster"] is None else to_cluster_status(answer["cluster"])

    async def toolset_status(self) -> tuple[ToolsetStatus, ...]:
        """Return the status of each toolset of the server that has a connection, such as MCP. Requires the scope admin."""
        page = await self._link.requests.send(RemoteRequest(operation="list_toolsets"))
        return tuple(map(to_toolset_status, page["items"]))

    async def datasets(self) -> tuple[Mapping[str, Any], ...]:
        """Return the evaluation datasets of the server, by name, each with its latest evaluation. Requires the scope admin.

        The methods of datasets return JSON objects of the HTTP API: dictionaries whose fields its OpenAPI document describes. A
        server has no datasets unless it was started with the option `--datasets`.
        """
        page = await self._link.requests.send(RemoteRequest(operation="list_datasets"))
        return tuple(page["items"])

    async def dataset_cases(self, name: str) -> tuple[Mapping[str, Any], ...] | None:
        """Return the evaluation cases of a dataset, in the order of its file. Requires the scope admin.

        Return None if the dataset does not exist.

        Raises:
            ConfigurationError: The file has an invalid case, or the server has no datasets.
        """
        page = await self._read_dataset(RemoteRequest(operation="get_dataset_cases", dataset=name))
        return None if page is None else tuple(page["items"])

    async def add_dataset_case(
        self,
        name: str,
        session_id: str,
        *,
        agent: str | None = None,
        message_id: str | None = None,
        expected: str | None = None,
    ) -> Mapping[str, Any]:
        """Append a session as an evaluation case to a dataset, and return the case. Requires the scope admin.

        A missing dataset is created. A session that is already a case of the dataset is not appended again.

        Args:
            name: Name of the dataset.
            session_id: Id of the session.
            agent: Name of the session's agent; needed only if several agents have a session with this id.
            message_id: Id of the message with which the case ends; None uses the whole session.
            expected: Expected answer of the case; None uses the recorded answer, or the corrected answer in its rating.

        Raises:
            ConfigurationError: The session has no answer that can be expected, the file has an invalid case, or the server has
                no datasets.
            SessionNotFound: The session does not exist.
            UsageError: The dataset has a different case with the same name.
        """
        fields = {"session_id": session_id, "agent": agent, "message_id": message_id, "expected": expected}
        request = RemoteRequest(
            operation="add_dataset_case",
            dataset=name,
            session_id=session_id,
            body={key: value for key, value in fields.items() if value is not None},
        )
        case: Mapping[str, Any] = await self._link.requests.send(request)
        return case

    async def replace_dataset_case(
        self, name: str, case: Mapping[str, Any], content: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Replace the content of an evaluation case, and return the new case. Requires the scope admin.

        Args:
            name: Name of the dataset.
            case: The case as `dataset_cases` returned it.
            content: New content of the case. A changed `name` renames the case.

        Raises:
            ConfigurationError: The new content or the file is invalid, or the server has no datasets.
            UsageError: The dataset has no case with this name, the case was changed since it was read, or another case has the
                new name.
        """
        request = RemoteRequest(
            operation="replace_dataset_case",
            dataset=name,
            part=case["name"],
            body={"version": case["version"], "case": content},
        )
        changed: Mapping[str, Any] | None = await self._read_dataset(request)
        if changed is None:
            raise UsageError(f"dataset {quoted(name)} has no case {quoted(case['name'])}")
        return changed

    async def remove_dataset_case(self, name: str, case: Mapping[str, Any]) -> None:
        """Remove an evaluation case from a dataset. A case that does not exist is ignored. Requires the scope admin.

        Args:
            name: Name of the dataset.
            case: The case as `dataset_cases` returned it.

        Raises:
            ConfigurationError: The file has an invalid case, or the server has no datasets.
            UsageError: The case was changed since it was read.
        """
        request = RemoteRequest(
            operation="remove_dataset_case",
            dataset=name,
            part=case["name"],
            query={"version": case["version"]},
        )
        await self._read_dataset(request)

    async def evaluations(self, name: str) -> tuple[Mapping[str, Any], ...] | None:
        """Return the evaluations of a dataset, the latest first; None if the dataset does not exist. Requires the scope admin.

        Raises:
            ConfigurationError: The server has no datasets.
        """
        page = await self._read_dataset(RemoteRequest(operation="list_evaluations", dataset=name))
        return None if page is None else tuple(page["items"])

    async def evaluation(self, name: str, evaluation_id: str) -> Mapping[str, Any] | None:
        """Return the results of an evaluation by case and variant, compared with the previous evaluation.

        Return None if the dataset or the evaluation does not exist. Requires the scope admin.

        Raises:
            ConfigurationError: The server has no datasets.
        """
        found: Mapping[str, Any] | None = await self._read_dataset(
            RemoteRequest(operation="get_evaluation", dataset=name, part=evaluation_id)
        )
        return found

    async def _read_dataset(self, request: RemoteRequest) -> Any:
        """Send a request about a dataset and return the response; None if the dataset, case or evaluation does not exist."""
        try:
            return await self._link.requests.send(request)
        except SessionNotFound:
            return None

    async def approvals(self, *, limit: int = 100) -> tuple[Approval, ...]:
        """Return at most `limit` open approvals of the sessions that the token may access."""
        page = await self._link.requests.send(
            RemoteRequest(operation="get_approvals", query={"limit": limit})
        )
        add_remote_label(ANY_SESSION)
        return tuple(to_approval(each) for each in page["items"])

    async def delete_session(self, session_id: str, *, agent: str | None = None) -> None:
        """Close a session and its child sessions, and erase all of their data. Requires the scope admin.

        Raises:
            SessionNotFound: The session does not exist.
        """
        request = RemoteRequest(operation="erase", agent=agent or "", session_id=session_id)
        await self._link.requests.send(request, done_by=("not-found",))


def _to_dead_letter(item: Mapping[str, Any]) -> DeadLetter:
    return DeadLetter(
        item["actor"],
        item["text"],
        item["reason"],
        at=to_seconds(item["at"]),
        owner=None if item["owner"] is None else Sender(item["owner"]),
        id=item["id"],
    )


@async_block()
async def open_client(
    transport: Transport, *, retry_timeout: float = DEFAULT_RETRY_TIMEOUT_SECONDS
) -> AsyncGenerator[Client, None]:
    """Open an `async with` block with a `Client` that sends requests over a transport. Leaving the block closes the transport.

    Raises:
        ConfigurationError: `retry_timeout` is not a number of seconds.
        OutsideTrio: The code runs on asyncio or without an event loop.
    """
    check_loop("connect()")
    check_seconds("retry_timeout", retry_timeout)
    raised: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield Client(ServerLink(RequestSender(transport, retry_timeout), nursery))
        except BaseException as error:  # noqa: ASYNC103, BLE001 - raised again below, not wrapped into a group
            raised = error
        nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
        await transport.aclose()
    if raised is not None:
        raise raised


def connect(
    url: str | Sequence[str],
    *,
    token: str | None = None,
    owner: str | None = None,
    retry_timeout: float = DEFAULT_RETRY_TIMEOUT_SECONDS,
) -> AbstractAsyncContextManager[Client]:
    """Open an `async with` block with a `Client` of a gateway: `connect("http://127.0.0.1:8300", token=...)`.

    After a lost connection, requests are retried if that is safe, and streams resume after the last record. Sessions stay
    open when the block exits.

    Args:
        url: Address of a gateway without `/v1`; or a list of addresses of one cluster, which are tried in turn.
        token: Access token, as `actgent token new` prints it.
        owner: Owner on whose behalf requests are sent, with a token that has the scope `impersonate:`; None for the token's
            owner.
        retry_timeout: Maximum seconds for which a request is retried while no server is reachable, or the server is full.

    Raises:
        ConfigurationError: An address, the token or `retry_timeout` is invalid.
        OutsideTrio: The code runs on asyncio or without an event loop; use `portal.connect` there.
    """
    return open_client(HTTPTransport(url, token=token, owner=owner), retry_timeout=retry_timeout)
