"""Endpoints for operators: the nodes and partitions of the cluster, and the connections of toolsets."""

from actgent.journal.cluster_interface import ClusterStatus
from actgent.web import json_response_types

from .endpoints import JSON, Endpoint, HTTPCall
from .json_serializers import to_date


async def get_cluster(call: HTTPCall) -> JSON[json_response_types.ClusterAnswer]:
    """Return the nodes and partitions of the cluster, and the agents without a node; null if the server is not in a cluster."""
    status = await call.gateway.access.runtime.cluster_status()
    return JSON({"cluster": None if status is None else _of_cluster(status)})


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


ENDPOINTS = (Endpoint(verb="GET", path="/cluster", answer=get_cluster, scope="admin"),)
