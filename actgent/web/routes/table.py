"""All addresses of the gateway; those that are asked for most often first."""

from . import agents, chat, events, insight, later, media, past, people, sessions, signing_in

ENDPOINTS = tuple(
    endpoint
    for module in (chat, events, sessions, people, later, media, past, insight, agents, signing_in)
    for endpoint in module.ENDPOINTS
)
