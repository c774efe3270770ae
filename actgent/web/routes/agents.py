"""The agents of a runtime over HTTP, whether it works, and the description of all addresses."""

import attrs
from starlette.responses import Response

from actgent.journal.listing import STATES
from actgent.web.metrics import MEDIA_TYPE, gauges_of
from actgent.web.problems import Problem

from .endpoints import JSON, Endpoint, HTTPCall
from .views import of_agent

TOTALS = {
    "type": "string",
    "enum": ["true"],
    "description": "Turns and spending of each agent, too, since figures are counted; takes the scope metrics.",
}


async def list_agents(call: HTTPCall) -> Response:
    """The agents that run."""
    agents = call.gateway.reach.runtime.agents
    found = [of_agent(agents[name], agents.opener(name)) for name in sorted(agents)]
    return JSON({"items": found, "next": None})


async def get_agent(call: HTTPCall) -> Response:
    """One agent: what it says of itself, its modes and tools."""
    opener = call.gateway.reach.known_opener(call.path["a"])
    return JSON(of_agent(call.gateway.reach.runtime.agents[call.path["a"]], opener))


async def live(_: HTTPCall) -> Response:
    """Whether the process answers."""
    return JSON({"status": "live"})


async def ready(call: HTTPCall) -> Response:
    """Whether messages are taken."""
    gateway = call.gateway
    if gateway.is_closing or not len(gateway.reach.runtime.agents):
        raise Problem("unavailable", "no agent runs here, or the gateway is closing")
    await gateway.reach.journal.head("", "")
    return JSON({"status": "ready"})


async def statistics(call: HTTPCall) -> Response:
    """What the agents do now, and for admins how much there is."""
    reach = call.gateway.reach
    agents = {each.agent: attrs.asdict(each) for each in reach.runtime.statistics()}
    if "totals" in call.query and call.caller.allows("metrics"):
        await call.gateway.metrics.begin()
        agents = {name: {**each, **call.gateway.metrics.totals(name)} for name, each in agents.items()}
    of_all = {}
    if call.caller.is_admin:
        counts = await reach.journal.counts()
        letters = len(reach.runtime.dead_letters)
        of_all = {"sessions": {state: counts.get(state, 0) for state in STATES}, "dead_letters": letters}
    return JSON({"agents": agents, **of_all})


async def show_metrics(call: HTTPCall) -> Response:
    """Figures of all agents and owners, in the text format of Prometheus, counted from the first request on."""
    gateway = call.gateway
    await gateway.metrics.begin()
    gauges = [*gauges_of(gateway.reach.runtime, await gateway.reach.journal.counts())]
    for webhook in gateway.outboxes:
        labels = {"webhook": webhook.webhook.id}
        gauges.append(("actgent_webhooks_sent_total", webhook.sent, labels))
        gauges.append(("actgent_webhooks_waiting", webhook.waiting, labels))
    return Response(gateway.metrics.text(gauges), media_type=MEDIA_TYPE)


async def list_webhooks(call: HTTPCall) -> Response:
    """Webhooks: what they have told, who is tried again, and what was given up."""
    return JSON({"items": [each.describe() for each in call.gateway.outboxes], "next": None})


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
