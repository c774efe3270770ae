"""What nodes and clients of a cluster say to each other, as bytes: each message says its form in `type`.

A request is one of HTTP, and its answer comes in pieces: so the endpoints of the gateway answer both ways.
Requests are written in the form that the pool writes, and answers in that of their request. All else stays in the first form,
as nodes and clients of all releases have to read it: beacons, what they are asked to do, layouts, owners, notices, tokens.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import attrs
from pamqp import commands

from actgent.approvals import session_of
from actgent.errors import WireError
from actgent.errors.printable import quoted
from actgent.journal.postgres import layout as layouts
from actgent.support.wire import Wire

from .amqp import Delivery

FIRST_FORM = 1
"""What the first release has read, and each one reads."""
REPEATED = "repeated"
"""The header of a message that was delivered in the queue of an earlier generation, too."""
DEATHS = "deaths"
"""The header with the number of nodes that have died while they had a message; of a read, as far as its client can tell."""
ALONE = "alone"
"""The header of a request that a node has begun while it began no other one of which a node may have died, with its name; older ones say true."""
_MOST_NOTED = 1000
"""Deaths that are read of a header, at most: a number that is counted on stays one that can be sent."""
_READ = ("reply_to", "message_id", "priority", "delivery_mode", "expiration")
"""What else nodes and brokers read of a message that waits."""
_TYPE = re.compile(r"actgent/([1-9][0-9]{0,3})")
ASK, CANCEL = "ASK", "CANCEL"
"""What pools have each other do, as the verbs of requests, which only a broker carries: see `pools`."""
BACKGROUND, USER, CONTROL, TOKEN = 0, 1, 3, 4
"""Priorities: of what nobody waits for, of requests, of what ends something, and of a partition's token."""
PERSISTENT = 2
"""The delivery mode of what a broker keeps over a restart."""


@attrs.frozen(kw_only=True)
class WireRequest:
    """A request."""

    id: str
    """Under which its answer comes; each try has its own."""
    verb: str
    path: str
    """Below `/v1`, each segment quoted."""
    query: str = ""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    body: bytes = b""
    owner: str
    """For whom it is asked."""
    scopes: tuple[str, ...] = ("admin",)
    """What the asker may do, as tokens of a gateway say it."""


@attrs.frozen(kw_only=True)
class Dropped:
    """The answers to a request are wanted no more."""

    id: str


@attrs.frozen(kw_only=True)
class Greeting:
    """A client asks how the cluster is laid out."""

    id: str


@attrs.frozen(kw_only=True)
class Layout:
    """The answer to a greeting."""

    id: str
    partitions: int
    generation: int
    form: int = FIRST_FORM
    """In which requests are written."""


@attrs.frozen(kw_only=True)
class AnswerPiece:
    """A piece of the answer to a request."""

    id: str
    number: int
    """Counted from 0: a client knows by it that one is missing."""
    status: int = 0
    """As HTTP has it; 0: the answer is cut off here, and is to be asked for again."""
    data: bytes = b""
    is_last: bool = False
    headers: Mapping[str, str] = attrs.field(factory=dict)
    """Of the answer, with its first piece; only where the request wants them, as older releases do not know them."""
    is_repeated: bool = False
    """True: the request may have had its effect before, at a node that has gone."""


@attrs.frozen(kw_only=True)
class OwnerChanged:
    """A partition has another owner, or the same one over a new connection: what was read ends, and is asked for again."""

    partition: int
    epoch: int


@attrs.frozen(kw_only=True)
class Beacon:
    """What a node says of itself."""

    node: str
    owned: tuple[int, ...] = ()
    """The partitions that it serves."""
    is_leaving: bool = False
    release: str = ""
    reads: int = FIRST_FORM
    """The highest form that it reads."""
    writes: int = FIRST_FORM
    """The form in which it writes."""
    agents: tuple[str, ...] = ()
    turns: int = 0
    """Turns that run there."""


@attrs.frozen(kw_only=True)
class Leave:
    """A node is asked to hand over what it has, and to end."""

    node: str


@attrs.frozen(kw_only=True)
class Buried:
    """A message was given up, as each process died that worked on it."""

    session_id: str
    agent: str
    message_id: str
    reason: str


@attrs.frozen
class PartitionToken:
    """The message of a partition that its owner holds."""


Message = (
    WireRequest
    | Dropped
    | Greeting
    | Layout
    | AnswerPiece
    | OwnerChanged
    | Beacon
    | Leave
    | Buried
    | PartitionToken
)
_WIRE = Wire(
    {
        Message: {
            "asked": WireRequest,
            "dropped": Dropped,
            "greeting": Greeting,
            "layout": Layout,
            "piece": AnswerPiece,
            "owner_changed": OwnerChanged,
            "beacon": Beacon,
            "leave": Leave,
            "buried": Buried,
            "token": PartitionToken,
        }
    }
)


def encode_message(message: Message) -> bytes:
    """A message as bytes."""
    return _WIRE.encode([message], Message)


def decode_message(body: bytes, properties: commands.Basic.Properties) -> Message:
    """The message that these bytes are.

    Raises:
        WireError: they are none, or of another form.
    """
    form = form_of(properties)
    if not FIRST_FORM <= form <= layouts.READS:
        kind = quoted(properties.message_type)
        raise WireError(f"a message of the type {kind}, not actgent/{FIRST_FORM} to actgent/{layouts.READS}")
    found = _WIRE.decode(body, Message)
    if len(found) != 1:
        raise WireError(f"{len(found)} messages where one belongs")
    message: Message = found[0]
    return message


def form_of(properties: commands.Basic.Properties) -> int:
    """The form of a message; 0 if it is none of a cluster."""
    return _form_of_type(properties.message_type or "")


@lru_cache(maxsize=64)
def _form_of_type(kind: str) -> int:
    found = _TYPE.fullmatch(kind)
    return int(found[1]) if found is not None else 0


def properties(*, form: int = FIRST_FORM, **given: Any) -> commands.Basic.Properties:
    """What the broker reads of a message."""
    return commands.Basic.Properties(message_type=f"actgent/{form}", **given)


def deaths_of(delivery: Delivery) -> int:
    """How many nodes have died that had a message, as far as that is noted."""
    noted = (delivery.properties.headers or {}).get(DEATHS, 0)
    return min(max(noted, 0), _MOST_NOTED) if isinstance(noted, int) else 0


def was_alone(delivery: Delivery, node: str) -> bool:
    """True if a request was begun alone by this node, or was to be."""
    return (delivery.properties.headers or {}).get(ALONE) in (True, node)


def with_death(delivery: Delivery, *, alone_at: str = "") -> commands.Basic.Properties:
    """What the broker is to read of a message that goes into its queue again, as one that had one more node die."""
    about = carried_over(delivery)
    about.headers = {
        **(about.headers or {}),
        DEATHS: deaths_of(delivery) + 1,
        **({ALONE: alone_at} if alone_at else {}),
    }
    return about


def carried_over(delivery: Delivery) -> commands.Basic.Properties:
    """What the broker is to read of a message that goes into another queue; that it was delivered before is kept.

    What no node reads stays behind: a sender can write there what we cannot send, or what the broker takes of that user only.
    """
    about, headers = delivery.properties, dict[str, Any]()
    if is_repeated(delivery):
        headers[REPEATED] = True
    if deaths := deaths_of(delivery):
        headers[DEATHS] = deaths
    if isinstance(alone_at := (about.headers or {}).get(ALONE), bool | str):
        headers[ALONE] = alone_at
    return commands.Basic.Properties(
        message_type=about.message_type,
        headers=headers or None,
        **{each: getattr(about, each) for each in _READ},
    )


def is_repeated(delivery: Delivery) -> bool:
    """True if a message may have had its effect before, at a node that has gone."""
    return delivery.redelivered or REPEATED in (delivery.properties.headers or {})


def session_named(asked: WireRequest) -> str:
    """The id of the session that a request names; empty if it names none."""
    kind, _, rest = asked.path.removeprefix("/").partition("/")
    if kind not in ("sessions", "approvals"):
        return ""
    named = unquote(rest.partition("/")[0])
    return named if kind == "sessions" else session_of(named)
