"""Conversion of the JSON of cluster and toolset status to the objects that `Runtime` returns."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import attrs

from actgent.journal.cluster_interface import ClusterStatus, NodeStatus, PartitionStatus, PoolLayout
from actgent.messages import ToolSpec
from actgent.toolsets.toolset_manager import ToolsetStatus

from .json_conversion import to_seconds

T = TypeVar("T")


def to_cluster_status(document: Mapping[str, Any]) -> ClusterStatus:
    """Convert the JSON of a cluster to a `ClusterStatus`."""
    partitions = document["partitions"]
    return ClusterStatus(
        layout=PoolLayout(
            generation=document["generation"], partitions=len(partitions), writes=document["record_format"]
        ),
        nodes=[_of_fields(NodeStatus, each, agents=tuple(each["agents"])) for each in document["nodes"]],
        partitions=[
            _of_fields(PartitionStatus, each, since=datetime.fromtimestamp(to_seconds(each["since"]), UTC))
            for each in partitions
        ],
        unhosted=document["unhosted"],
        suspects=document["suspects"],
        dead=document["dead"],
    )


def to_toolset_status(document: Mapping[str, Any]) -> ToolsetStatus:
    """Convert the JSON of a toolset to a `ToolsetStatus`."""
    return _of_fields(
        ToolsetStatus,
        document,
        agents=tuple(document["agents"]),
        tools=tuple(_of_fields(ToolSpec, each) for each in document["tools"]),
        failed_at=None if document["failed_at"] is None else to_seconds(document["failed_at"]),
    )


def _of_fields(cls: type[T], document: Mapping[str, Any], **converted: Any) -> T:
    """Create an object of class `cls` from the fields of a JSON document. Unknown fields of newer servers are ignored.

    `converted` are fields that are already converted from JSON.
    """
    names = [field.name for field in attrs.fields(cls)]  # type: ignore[arg-type]  # attrs classes have no common base
    return cls(**{name: document[name] for name in names} | converted)
