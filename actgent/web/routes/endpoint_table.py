"""The table of all endpoints. The router searches it in order, so endpoints with the most requests come first."""

from . import (
    agents,
    approvals,
    dead_letters,
    events,
    introspection,
    login,
    media,
    messages,
    schedules,
    search,
    sessions,
    time_travel,
)

ENDPOINTS = tuple(
    endpoint
    for module in (
        messages,
        events,
        sessions,
        approvals,
        schedules,
        media,
        time_travel,
        introspection,
        search,
        dead_letters,
        agents,
        login,
    )
    for endpoint in module.ENDPOINTS
)
