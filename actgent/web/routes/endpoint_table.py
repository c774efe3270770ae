"""The table of all endpoints. The router searches it in order, so endpoints with the most requests come first."""

from . import (
    agents_and_server_status,
    all_sessions_overview,
    approvals_and_modes,
    datasets,
    events,
    login,
    media,
    memories,
    messages,
    records_forks_and_replays,
    schedules_and_tasks,
    search_and_statistics,
    sessions,
)

ENDPOINTS = tuple(
    endpoint
    for module in (
        messages,
        events,
        sessions,
        approvals_and_modes,
        schedules_and_tasks,
        media,
        records_forks_and_replays,
        all_sessions_overview,
        search_and_statistics,
        memories,
        datasets,
        agents_and_server_status,
        login,
    )
    for endpoint in module.ENDPOINTS
)
