"""Endpoints of the server: agents, health, statistics, metrics, webhooks, dead letters, cluster, toolsets and OpenAPI."""

from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import trio
from starlette.responses import Response

from actgent.actors.dead_letters import DeadLetter
from actgent.errors import Fenced, JournalError
from actgent.errors.text_escaping import quoted, shown
from actgent.journal.cluster_interface import ClusterStatus
from actgent.journal.journal_interface import Journal
from actgent.journal.session_list_queries import STATES
from actgent.messages import Message, Sender
from actgent.toolsets.toolset_manager import ToolsetStatus
from actgent.web import json_response_types
from actgent.web.problem_documents import Problem, missing
from actgent.web.prometheus_metrics import MEDIA_TYPE, gauges_of

from .endpoints import JSON, Endpoint, HTTPCall
from .json_serializers import of_agent, to_date

FAILURE_SECONDS = 5.0
"""Time in seconds after a failed journal write during which the readiness probe reports failure."""
JOURNAL_TIMEOUT_SECONDS = 5.0
"""Timeout in seconds of the journal read of a readiness probe."""
TOTALS = {
    "type": "string",
    "enum": ["true"],
    "description": "Also return turns and cost of each agent, including those before a restart; requires the scope metrics.",
}


async def list_agents(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.AgentDocument]]:
    """List the running agents."""
    access = call.gateway.access
    agents, known = access.runtime.agents, {each.agent: each for each in access.statistics(call.caller)}
    found = [
        of_agent(agents[name], agents.agent(name), agents.opener(name), known[name])
        for name in sorted(agents)
    ]
    return JSON({"items": found, "next": None})


async def get_agent(call: HTTPCall) -> JSON[json_response_types.AgentDocument]:
    """Return a running agent: its description, modes, tools and limits."""
    access, name = call.gateway.access, call.path["a"]
    opener = access.known_opener(name)
    known = next(each for each in access.statistics(call.caller) if each.agent == name)
    agents = access.runtime.agents
    return JSON(of_agent(agents[name], agents.agent(name), opener, known))


async def live(call: HTTPCall) -> JSON[json_response_types.Liveness]:
    """Liveness probe: a response shows that the process works.

    On a cluster node, it has the seconds since a node's death was noticed.
    """
    member = call.gateway.access.runtime.membership
    if member is None:
        return JSON({"status": "live"})
    return JSON({"status": "live", "calm_seconds": round(member.calm_seconds(), 3)})


async def ready(call: HTTPCall) -> JSON[json_response_types.Readiness]:
    """Readiness probe: the status is 200 if the server accepts new messages, else 503 with the reasons."""
    reasons = [*_rejection_reasons(call), *await _journal_failures(call.gateway.access.journal)]
    if reasons:
        raise Problem("unavailable", "; ".join(reasons), reasons=reasons)
    return JSON({"status": "ready"})


def _rejection_reasons(call: HTTPCall) -> Iterator[str]:
    """Yield the reasons why the gateway would reject new messages. Yield nothing if it would accept new messages.

    The probe needs no token, so the reasons name no agent.
    """
    agents = call.gateway.access.runtime.statistics()
    full = sum(each.inbox.waiting >= each.capacity for each in agents)
    if call.gateway.is_closing:
        yield "the gateway is closing"
    if not agents:
        yield "no agent runs here"
    if (member := call.gateway.access.runtime.membership) is not None:
        yield from member.unready_reasons()
    if full:
        yield f"full inboxes: {full} of {len(agents)}"


async def _journal_failures(journal: Journal) -> Iterable[str]:
    """Return the reasons why the journal does not work; empty if the journal works.

    A failed write is reported for `FAILURE_SECONDS`.
    """
    known = journal.statistics
    if known is not None and known.failure:
        if known.failure == Fenced.__name__:
            return ("another process owns the journal",)
        if trio.current_time() < known.failed_at + FAILURE_SECONDS:
            return ("the journal cannot be written",)
    try:
        with trio.fail_after(JOURNAL_TIMEOUT_SECONDS):
            await journal.head("", "")
    except trio.TooSlowError:
        return (f"the journal does not answer within {JOURNAL_TIMEOUT_SECONDS:g} s",)
    except JournalError:
        return ("the journal cannot be read",)
    return ()


async def statistics(call: HTTPCall) -> JSON[json_response_types.Statistics]:
    """Return statistics of the agents over the caller's sessions, or over all sessions with the scope `metrics`."""
    access = call.gateway.access
    agents: dict[str, Any] = {each.agent: attrs.asdict(each) for each in access.statistics(call.caller)}
    if "totals" in call.query and call.caller.allows("metrics"):
        await call.gateway.metrics.wait_past()
        agents = {name: {**each, **call.gateway.metrics.totals(name)} for name, each in agents.items()}
    document: json_response_types.Statistics = {"agents": agents}
    if call.caller.is_admin:
        counts = await access.journal.counts()
        document["sessions"] = {state: counts.get(state, 0) for state in STATES}
        document["dead_letters"] = len(access.runtime.dead_letters)
        if (node := access.runtime.cluster()) is not None:
            document["node"] = node.node
    return JSON(document)


async def show_metrics(call: HTTPCall) -> Response:
    """Return the metrics of the server, over all agents and owners, in the text format of Prometheus."""
    gateway = call.gateway
    await gateway.metrics.wait_past()
    gauges = [*gauges_of(gateway.access.runtime, await gateway.access.journal.counts())]
    gauges.append(("actgent_http_streams", gateway.streams.open, {}))
    gauges.append(("actgent_http_readers_cut_total", gateway.streams.cut, {}))
    for webhook in gateway.outboxes:
        labels = {"webhook": webhook.webhook.id}
        gauges.append(("actgent_webhooks_sent_total", webhook.sent, labels))
        gauges.append(("actgent_webhooks_waiting", webhook.waiting, labels))
    return Response(gateway.metrics.text(gauges), media_type=MEDIA_TYPE)


async def list_webhooks(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.WebhookDocument]]:
    """List webhooks, each with its number of deliveries, its pending retries and its failed deliveries."""
    return JSON({"items": [each.describe() for each in call.gateway.outboxes], "next": None})


async def redeliver(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.FailedDelivery]]:
    """Send failed notifications of a webhook again: those with the given ids, or all. Delivered notifications leave `failed`."""
    outbox = next((each for each in call.gateway.outboxes if each.webhook.id == call.path["w"]), None)
    if outbox is None:
        raise missing()
    wanted = call.body.get("webhook_ids")
    items = await outbox.redeliver(wanted)
    if unknown := sorted({*(wanted or ())} - {each["webhook_id"] for each in items}):
        raise Problem(
            "not-found", "the webhook has no failed notifications with these ids", webhook_ids=unknown[:100]
        )
    return JSON({"items": items, "next": None}, status_code=202)


async def openapi(call: HTTPCall) -> JSON[json_response_types.JSONObject]:
    """Return the OpenAPI document of the gateway."""
    return JSON(dict(call.gateway.document()))


MAX_ERROR_CHARS = 2000
"""Length to which the message of an error is cut, in characters."""


async def get_cluster(call: HTTPCall) -> JSON[json_response_types.ClusterAnswer]:
    """Return the nodes and partitions of the cluster, and the agents that no node hosts; null if the server is not in a cluster."""
    status = await call.gateway.access.runtime.cluster_status()
    return JSON({"cluster": None if status is None else _of_cluster(status)})


async def list_toolsets(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.ToolsetDocument]]:
    """List the toolsets that have a connection, such as MCP servers, with their agents, tools and last errors, without secrets."""
    found = call.gateway.access.runtime.toolset_status()
    return JSON({"items": [_of_toolset(each) for each in found], "next": None})


def _of_toolset(status: ToolsetStatus) -> json_response_types.ToolsetDocument:
    return {
        "name": status.name,
        "agents": list(status.agents),
        "state": status.state,
        "kind": status.kind,
        "address": status.address,
        "protocol": status.protocol,
        "server": status.server,
        "tools": [
            {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
            for spec in status.tools
        ],
        "reconnects": status.reconnects,
        "error": status.error,
        "error_text": shown(status.error_text, MAX_ERROR_CHARS),
        "failed_at": to_date(status.failed_at or 0.0),
    }


def _of_cluster(status: ClusterStatus) -> json_response_types.ClusterDocument:
    layout = status.layout
    return {
        "is_whole": status.is_whole,
        "generation": layout.generation,
        "record_format": layout.writes,
        "nodes": [
            {
                "name": node.name,
                "address": node.address,
                "agents": list(node.agents),
                "release": node.release,
                "reads": node.reads,
                "is_leaving": node.is_leaving,
                "partitions": node.partitions,
            }
            for node in status.nodes
        ],
        "partitions": [
            {
                "partition": each.partition,
                "owner": each.owner,
                "epoch": each.epoch,
                "since": to_date(each.since.timestamp()),
                "is_served": each.is_served,
                "pending": each.pending,
                "unfinished": each.unfinished,
                "lag": round(each.lag, 3),
            }
            for each in status.partitions
        ],
        "unhosted": dict(status.unhosted),
        "suspects": status.suspects,
        "dead": status.dead,
    }


MAX_TEXT_CHARS = 4000
"""Length to which the text of a message is cut, in characters."""


async def get_dead_letters(
    call: HTTPCall,
) -> JSON[json_response_types.PageDocument[json_response_types.DeadLetterDocument]]:
    """List the dead letters in memory, the newest first."""
    letters = reversed(call.gateway.access.runtime.dead_letters)
    return JSON({"items": [_of_letter(letter) for letter in letters], "next": None})


async def send_dead_letter(call: HTTPCall) -> JSON[json_response_types.DeadLetterDocument]:
    """Send a dead letter to its agent or actor again. The letter is removed from the list after the message was accepted."""
    runtime = call.gateway.access.runtime
    letter = next((each for each in runtime.dead_letters if each.id == call.path["l"]), None)
    if letter is None:
        raise missing()
    await runtime.send_again(letter)
    return JSON(_of_letter(letter), status_code=202)


def _of_letter(letter: DeadLetter) -> json_response_types.DeadLetterDocument:
    payload = letter.payload
    is_message = isinstance(payload, Message)
    owner = letter.owner
    return {
        "id": letter.id,
        "actor": letter.actor,
        "session_id": payload.session_id if is_message else None,
        "owner": owner.name if isinstance(owner, Sender) else None,
        "text": shown(payload.text, MAX_TEXT_CHARS) if is_message else quoted(payload, MAX_TEXT_CHARS),
        "reason": shown(letter.reason, MAX_TEXT_CHARS),
        "error": "" if letter.error is None else type(letter.error).__name__,
        "at": to_date(letter.at),
    }


ENDPOINTS = (
    Endpoint(verb="GET", path="/dead-letters", answer=get_dead_letters, scope="admin"),
    Endpoint(
        verb="POST",
        path="/dead-letters/{l}/redelivery",
        answer=send_dead_letter,
        scope="admin",
        statuses=(202,),
    ),
    Endpoint(verb="GET", path="/cluster", answer=get_cluster, scope="admin"),
    Endpoint(verb="GET", path="/toolsets", answer=list_toolsets, scope="admin"),
    Endpoint(verb="GET", path="/agents", answer=list_agents, scope="read"),
    Endpoint(verb="GET", path="/agents/{a}", answer=get_agent, scope="read"),
    Endpoint(verb="GET", path="/statistics", answer=statistics, scope="read", query={"totals": TOTALS}),
    Endpoint(verb="GET", path="/metrics", answer=show_metrics, scope="metrics", media_type=MEDIA_TYPE),
    Endpoint(verb="GET", path="/webhooks", answer=list_webhooks, scope="admin"),
    Endpoint(
        verb="POST",
        path="/webhooks/{w}/redelivery",
        answer=redeliver,
        scope="admin",
        body={
            "type": "object",
            "properties": {
                "webhook_ids": {
                    "type": "array",
                    "items": {"type": "string", "maxLength": 200},
                    "minItems": 1,
                    "maxItems": 100,
                    "description": "Ids from `failed`; all failed notifications if missing.",
                }
            },
            "additionalProperties": False,
        },
        statuses=(202,),
    ),
    Endpoint(verb="GET", path="/health/live", answer=live, scope=None),
    Endpoint(verb="GET", path="/health/ready", answer=ready, scope=None, statuses=(200, 503)),
    Endpoint(verb="GET", path="/openapi.json", answer=openapi, scope=None),
)
