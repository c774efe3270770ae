"""Agent cards of A2A 1.0: a public one for discovery, and an extended one for holders of a token."""

import hashlib
import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any
from urllib.parse import quote

import orjson
from starlette.responses import Response

from actgent import __version__
from actgent.runtime.agent_directory import AgentCard
from actgent.web.problem_documents import missing
from actgent.web.routes.endpoints import HTTPCall

from .settings import A2ASettings

VERSION = "1.0"
CARD_SECONDS = 300
"""Seconds for which clients may cache an agent card."""
_STARTED = formatdate(time.time(), usegmt=True)


def make_card(
    card: AgentCard, settings: A2ASettings, base_url: str, *, is_extended: bool, has_push: bool
) -> dict[str, Any]:
    """Return the A2A card of an agent.

    Only the extended card, for authenticated clients, has the agent's goal and capabilities.
    """
    url = f"{base_url}/a2a/{quote(card.name, safe='')}"
    about = ". ".join(each for each in (card.role, card.goal, card.capabilities) if each)
    description = (about if is_extended else "") or f"The agent {card.name}"
    return {
        "name": card.name,
        "description": description,
        "version": __version__,
        "supportedInterfaces": [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": VERSION},
            {"url": f"{url}/v1", "protocolBinding": "HTTP+JSON", "protocolVersion": VERSION},
        ],
        "capabilities": {"streaming": True, "pushNotifications": has_push, "extendedAgentCard": True},
        "securitySchemes": {
            "token": {"httpAuthSecurityScheme": {"scheme": "Bearer", "description": "A token of the gateway"}}
        },
        "securityRequirements": [{"schemes": {"token": {"list": []}}}],
        "defaultInputModes": list(settings.input_modes),
        "defaultOutputModes": list(settings.output_modes),
        "skills": [{"id": "chat", "name": "Chat", "description": description, "tags": ["chat"]}],
    }


def public_card(call: HTTPCall, settings: A2ASettings, agent: str | None) -> Response:
    """Return the public card of an agent; `agent=None` is the only agent of the gateway.

    Raises:
        Problem: The agent is unknown, or the gateway has several agents.
    """
    agents: Mapping[str, AgentCard] = call.gateway.access.runtime.agents
    if agent is None and len(agents) == 1:
        agent = next(iter(agents))
    if agent is None or agent not in agents:
        raise missing()
    body = orjson.dumps(
        make_card(
            agents[agent],
            settings,
            base_url_of(call, settings.base_url),
            is_extended=False,
            has_push=has_push(call),
        )
    )
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"cache-control": f"public, max-age={CARD_SECONDS}", "etag": tag, "last-modified": _STARTED}
    if call.header("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def has_push(call: HTTPCall) -> bool:
    """Return True if the gateway can send push notifications to URLs that clients set."""
    return call.gateway.session_webhook is not None


def base_url_of(call: HTTPCall, base_url: str) -> str:
    """Return the base URL of the gateway: the configured one, or the one by which the client has reached it.

    The gateway has checked the host against the names that it is allowed to have.
    """
    return base_url.rstrip("/") or f"{call.scheme}://{call.header('host')}"
