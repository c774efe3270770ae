"""Endpoints for operators: the nodes and partitions of the cluster, and the connections of toolsets."""

from actgent.errors.text_escaping import shown
from actgent.journal.cluster_interface import ClusterStatus
from actgent.toolsets.toolset_manager import ToolsetStatus
from actgent.web import json_response_types

from .endpoints import JSON, Endpoint, HTTPCall
from .json_serializers import to_date

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


ENDPOINTS = (
    Endpoint(verb="GET", path="/cluster", answer=get_cluster, scope="admin"),
    Endpoint(verb="GET", path="/toolsets", answer=list_toolsets, scope="admin"),
)
