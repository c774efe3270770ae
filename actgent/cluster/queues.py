"""The queues and exchanges of a cluster: their names and kinds are what all nodes and clients of all releases agree on."""

import re
import secrets
from collections.abc import Mapping, Sequence

import attrs

from actgent.errors import ConfigurationError
from actgent.errors.printable import quoted

PRIORITIES = 4
"""The highest priority of a classic queue: background 0, user 1, control 2 and 3, the token 4."""
EVENTS = "actgent.events"
"""The topic exchange of what happens on all nodes; published only while someone listens."""
DEAD = "actgent.dead"
"""The queue of notices of buried messages."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@attrs.frozen(kw_only=True)
class QueueForm:
    """A queue, as it is declared."""

    name: str
    """Empty: the broker gives one."""
    durable: bool = False
    """True: it is there after a restart of the broker."""
    exclusive: bool = False
    """True: it is one connection's, and ends with it."""
    auto_delete: bool = False
    """True: it ends with its last consumer."""
    arguments: Mapping[str, str | int | bool] = attrs.field(factory=dict)
    """What RabbitMQ calls optional arguments. Limits are none of them: those are policies, which may change."""


def partition_queue(pool: str, generation: int, partition: int, broker: Sequence[int]) -> QueueForm:
    """The requests of a partition, and its token; `broker` is the version of the broker, which decides the kind."""
    arguments: dict[str, str | int | bool] = {"x-single-active-consumer": True}
    if tuple(broker) < (4,):
        arguments |= {"x-queue-type": "classic", "x-max-priority": PRIORITIES}
    else:
        arguments["x-queue-type"] = "quorum"
    name = f"actgent.{check_queue_part('pool', pool)}.g{generation}.{partition}"
    return QueueForm(name=name, durable=True, arguments=arguments)


def client_queue(name: str = "") -> QueueForm:
    """What a client is told, for as long as one connection: what it misses it reads again, behind its cursor.

    The name stands in that of the queue, for rights of users of the broker; each connection has a queue of its own.
    """
    if name:
        name = f"actgent.client.{check_queue_part('client', name)}.{secrets.token_hex(4)}"
    return QueueForm(name=name, exclusive=True, auto_delete=True)


def beacon_exchange(pool: str) -> str:
    """The fanout exchange of what nodes say of themselves; each of them has an exclusive queue for it."""
    return f"actgent.{check_queue_part('pool', pool)}.nodes"


def owner_exchange(pool: str) -> str:
    """The fanout exchange of partitions that have another owner, which all clients hear."""
    return f"actgent.{check_queue_part('pool', pool)}.owners"


def shared_queue(pool: str) -> QueueForm:
    """What any node of a pool may answer."""
    return QueueForm(name=f"actgent.{check_queue_part('pool', pool)}.any", durable=True)


def dead_queue() -> QueueForm:
    """Notices of buried messages."""
    return QueueForm(name=DEAD, durable=True)


def check_queue_part(what: str, name: str) -> str:
    """A name that stands in names of queues, with which rights are given to users of the broker.

    Raises:
        ConfigurationError: it holds anything but letters, digits, `-` and `_`, or is longer than 64 characters.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{quoted(name)} is no name of a {what}: 1 to 64 letters, digits, '-' and '_', as it stands in names of queues"
        )
    return name
