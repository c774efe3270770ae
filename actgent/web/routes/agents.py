"""The agents of a runtime over HTTP, whether it works, and the description of all addresses."""

from collections.abc import Iterable, Iterator

import attrs
import trio
from starlette.responses import Response

from actgent.errors import Fenced, JournalError
from actgent.journal.base import Journal
from actgent.journal.listing import STATES
from actgent.web.metrics import MEDIA_TYPE, gauges_of
from actgent.web.problems import Problem, missing

from .endpoints import JSON, Endpoint, HTTPCall
from .views import of_agent

TRIED_AGAIN = 5.0
"""Seconds after which a journal that could not be written may be tried by further messages."""
ANSWERS = 5.0
"""Seconds in which it has to answer."""
TOTALS = {
    "type": "string",
    "enum": ["true"],
    "description": "Turns and spending of each agent, too, also from before a restart; takes the scope metrics.",
}


async def list_agents(call: HTTPCall) -> Response:
    """The agents that run."""
    reach = call.gateway.reach
    agents, known = reach.runtime.agents, {each.agent: each for each in reach.statistics(call.caller)}
    found = [of_agent(agents[name], agents.opener(name), known[name]) for name in sorted(agents)]
    return JSON({"items": found, "next": None})


async def get_agent(call: HTTPCall) -> Response:
    """One agent: what it says of itself, its modes and tools."""
    reach, name = call.gateway.reach, call.path["a"]
    opener = reach.known_opener(name)
    known = next(each for each in reach.statistics(call.caller) if each.agent == name)
    return JSON(of_agent(reach.runtime.agents[name], opener, known))


async def live(_: HTTPCall) -> Response:
    """Whether the process answers."""
    return JSON({"status": "live"})


async def ready(call: HTTPCall) -> Response:
    """Whether messages are taken."""
    reasons = [*_full(call), *await _unwritable(call.gateway.reach.journal)]
    if reasons:
        raise Problem("unavailable", "; ".join(reasons), reasons=reasons)
    return JSON({"status": "ready"})


def _full(call: HTTPCall) -> Iterator[str]:
    """Why no message would be taken: nobody is told names of agents here."""
    agents = call.gateway.reach.runtime.statistics()
    full = sum(each.inbox.waiting >= each.capacity for each in agents)
    if call.gateway.is_closing:
        yield "the gateway is closing"
    if not agents:
        yield "no agent runs here"
    if full:
        yield f"full inboxes: {full} of {len(agents)}"


async def _unwritable(journal: Journal) -> Iterable[str]:
    """Why nothing would be written; some seconds after a failure it is tried again, as nobody else might."""
    known = journal.statistics
    if known is not None and known.failure:
        if known.failure == Fenced.__name__:
            return ("another process owns the journal",)
        if trio.current_time() < known.failed_at + TRIED_AGAIN:
            return ("the journal cannot be written",)
    try:
        with trio.fail_after(ANSWERS):
            await journal.head("", "")
    except trio.TooSlowError:
        return (f"the journal does not answer within {ANSWERS:g} s",)
    except JournalError:
        return ("the journal cannot be read",)
    return ()


async def statistics(call: HTTPCall) -> Response:
    """What the agents do now, of the caller's own sessions; with the scope metrics of all, and for admins how much there is."""
    reach = call.gateway.reach
    agents = {each.agent: attrs.asdict(each) for each in reach.statistics(call.caller)}
    if "totals" in call.query and call.caller.allows("metrics"):
        await call.gateway.metrics.wait_past()
        agents = {name: {**each, **call.gateway.metrics.totals(name)} for name, each in agents.items()}
    of_all = {}
    if call.caller.is_admin:
        counts = await reach.journal.counts()
        letters = len(reach.runtime.dead_letters)
        of_all = {"sessions": {state: counts.get(state, 0) for state in STATES}, "dead_letters": letters}
    return JSON({"agents": agents, **of_all})


async def show_metrics(call: HTTPCall) -> Response:
    """Figures of all agents and owners, in the text format of Prometheus."""
    gateway = call.gateway
    await gateway.metrics.wait_past()
    gauges = [*gauges_of(gateway.reach.runtime, await gateway.reach.journal.counts())]
    gauges.append(("actgent_http_streams", gateway.streams.open, {}))
    gauges.append(("actgent_http_readers_cut_total", gateway.streams.cut, {}))
    for webhook in gateway.outboxes:
        labels = {"webhook": webhook.webhook.id}
        gauges.append(("actgent_webhooks_sent_total", webhook.sent, labels))
        gauges.append(("actgent_webhooks_waiting", webhook.waiting, labels))
    return Response(gateway.metrics.text(gauges), media_type=MEDIA_TYPE)


async def list_webhooks(call: HTTPCall) -> Response:
    """Webhooks: what they have told, who is tried again, and what was given up."""
    return JSON({"items": [each.describe() for each in call.gateway.outboxes], "next": None})


async def redeliver(call: HTTPCall) -> Response:
    """Send again what a webhook has given up: those that are named, or all of them. What is taken is listed no more."""
    outbox = next((each for each in call.gateway.outboxes if each.webhook.id == call.path["w"]), None)
    if outbox is None:
        raise missing()
    wanted = call.body.get("webhook_ids")
    items = await outbox.redeliver(wanted)
    if unknown := sorted({*(wanted or ())} - {each["webhook_id"] for each in items}):
        raise Problem("not-found", "nothing of these ids was given up", webhook_ids=unknown[:100])
    return JSON({"items": [dict(each) for each in items], "next": None}, status_code=202)


async def openapi(call: HTTPCall) -> Response:
    """This document."""
    return JSON(call.gateway.document())


ENDPOINTS = (
    Endpoint(verb="GET", path="/agents", answer=list_agents, scope="read"),
    Endpoint(
        verb="GET",
        path="/agents/{a}",
        answer=get_agent,
        scope="read",
    ),
    Endpoint(
        verb="GET",
        path="/statistics",
        answer=statistics,
        scope="read",
        query={"totals": TOTALS},
    ),
    Endpoint(verb="GET", path="/metrics", answer=show_metrics, scope="metrics", gives=MEDIA_TYPE),
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
                    "description": "As `failed` has them; all of them without.",
                }
            },
            "additionalProperties": False,
        },
        statuses=(202,),
    ),
    Endpoint(verb="GET", path="/health/live", answer=live, scope=None),
    Endpoint(
        verb="GET",
        path="/health/ready",
        answer=ready,
        scope=None,
        statuses=(200, 503),
    ),
    Endpoint(verb="GET", path="/openapi.json", answer=openapi, scope=None),
)
