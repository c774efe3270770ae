"""All addresses of the gateway; those that are asked for most often first."""

from . import agents, chat, events, insight, later, media, past, people, sessions

ENDPOINTS = tuple(
    endpoint
    for module in (chat, events, sessions, people, later, media, past, insight, agents)
    for endpoint in module.ENDPOINTS
)
