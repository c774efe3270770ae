"""Requests for sessions that other nodes of a cluster own: relayed to the owner, and answered as it answers.

The caller was authenticated here; its identity goes with the request. A request is tried again until the caller's patience
ends: a read always, a request with an effect by its id, which it gets here if it has none. A stream that is cut off ends here
too; its client comes back with the last number that it saw and resumes at the owner of that time. A message for a session that
no node owns is stored for the next owner, and acknowledged.
"""

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

import attrs
import orjson
import trio
from starlette.responses import Response
from starlette.types import Receive, Scope as ASGIScope, Send

from actgent.approvals import session_of
from actgent.client.calls import MAX_BREAKS, Pauses
from actgent.client.http.forms import ALONG, COUNTS_BREAKS, PATIENCE, REPEATED, WANTED, HTTPForm
from actgent.client.transport import ConnectionLost
from actgent.errors import Fenced, SessionClosed, SessionMoved
from actgent.messages import new_secret
from actgent.web.problems import Problem
from actgent.web.routes import media, past
from actgent.web.routes.chat import ENDPOINTS as CHAT, accepted, get_feedback, say, wait_of
from actgent.web.routes.endpoints import Endpoint, HTTPCall
from actgent.web.routes.repeating import fork_id, id_of_key, key_for
from actgent.web.routes.sessions import post_session
from actgent.web.streaming.streams import unless_gone
from actgent.web.tokens import SCOPES

MAX_PATIENCE_SECONDS = 30.0
"""Seconds for which a request is tried until its session is served, if its client does not say less."""
WANTS_HEADERS = "actgent-headers"
"""The header of a request whose answer is to come with its headers: a gateway hands them on."""
HANDED_ON = frozenset(
    {
        "content-type",
        "location",
        "etag",
        "retry-after",
        "content-disposition",
        "content-security-policy",
        "x-accel-buffering",
    }
)
"""Headers that say something of what is answered, and not of the connection."""
_SENT = (
    "accept",
    "content-type",
    "idempotency-key",
    "if-none-match",
    "last-event-id",
    "traceparent",
    WANTED,
    ALONG,
)
"""Headers that are handed on."""
_OF_JOURNAL = frozenset(
    {
        past.get_records,
        past.get_past,
        past.get_request,
        past.get_state,
        past.post_compare,
        past.get_export,
        media.get_medium,
        get_feedback,
    }
)
"""What any process with the journal answers, wherever the session lives."""
_IDS = {"say": "message_id", "schedule": "key", "delegate": "task_id", "post_fork": "session_id"}
"""Fields of bodies by which a repetition is known."""
_DONE = {"post_decision": 409, "unschedule": 404, "cancel_task": 404, "erase": 404}
"""The status of a repetition of what was done the first time."""
_OTHERWISE = b'"as_asked":false'
"""In an answer: what is so now is not what was asked for."""
_AGAIN = (b'"/errors/busy"', b'"moved":true')
"""In an answer: nothing was done, and the same request may be taken a little later."""
_GET_MESSAGE = next(each for each in CHAT if each.answer.__name__ == "get_message")
LONGEST_PAUSE = 1.0
"""Seconds between two tries, at most."""
_OK, _ACCEPTED, _NO_CONTENT, _FIRST_ERROR = 200, 202, 204, 400


class NoOwner(ConnectionLost):
    """No live node owns the partition of the session at the moment, so nothing was sent."""

    def __init__(self) -> None:
        super().__init__("no node serves this session at the moment", was_sent=False)


@attrs.frozen(kw_only=True)
class RelayedAnswer:
    """The status and headers of an answer, and the pieces of its body."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncGenerator[bytes, None]

    @property
    def is_stream(self) -> bool:
        """True if its pieces are sent as they come."""
        return not self.headers.get("content-type", "").startswith(
            ("application/json", "application/problem")
        )


@runtime_checkable
class Way(Protocol):
    """The way to the owners of sessions; it tries once."""

    def relay(
        self, form: HTTPForm, *, session_id: str, owner: str, scopes: tuple[str, ...], seconds: float
    ) -> AbstractAsyncContextManager[RelayedAnswer]:
        """Send a request to the owner of a session, or to any node if none is named.

        Raises:
            NoOwner: No live node owns the session.
            ConnectionLost: There is no answer, or no more of it.
        """

    async def store(
        self, form: HTTPForm, *, session_id: str, message_id: str, owner: str, scopes: tuple[str, ...]
    ) -> bool:
        """Store a message for the next owner of its session; return False if there is an owner by now.

        Raises:
            JournalFailed: The database does not answer; the message may be stored or not.
        """


@attrs.frozen(kw_only=True)
class Relay:
    """The way of a gateway to sessions that other nodes own."""

    way: Way
    is_ours: Callable[[str], bool]
    """Returns True for the id of a session that this process owns and serves now."""
    is_draining: Callable[[str], bool]
    """Returns True for the id of a session whose turns end here before another node owns it."""
    wait_released: Callable[[str], Awaitable[None]]
    """Waits until the requests of a session of this process may begin."""

    async def answer(self, endpoint: Endpoint, call: HTTPCall) -> Response:
        """Answer a request here, or relay it to the owner of its session."""
        session_id = _session_of(call)
        if session_id and endpoint.answer not in _OF_JOURNAL:
            if not (
                self.is_ours(session_id)
                or (is_freeing(endpoint.verb, call.address) and self.is_draining(session_id))
            ):
                return RelayedResponse(self.way, endpoint, call, None)
            await self.wait_released(session_id)
        try:
            return await endpoint.answer(call)
        except Fenced as moved:
            return RelayedResponse(self.way, endpoint, call, moved)


def is_freeing(verb: str, path: str) -> bool:
    """Return True for a request that ends a turn, lets one continue or asks which one runs: a draining node answers it."""
    above, _, last = path.rpartition("/")
    return last in ("interrupt", "close", "decision") or (verb == "GET" and above.endswith("/sessions"))


def _session_of(call: HTTPCall) -> str:
    if "id" not in call.path:
        return ""
    is_approval = call.address.startswith("/v1/approvals/")
    return session_of(call.path["id"]) if is_approval else call.path["id"]


class RelayedResponse(Response):
    """An answer that another node gives."""

    def __init__(self, way: Way, endpoint: Endpoint, call: HTTPCall, moved: Fenced | None) -> None:
        super().__init__()
        self._way, self._endpoint, self._call, self._moved = way, endpoint, call, moved
        self._name = endpoint.answer.__name__
        self._body = dict(call.body)
        self._sent: dict[str, str] = {name: value for name in _SENT if (value := call.header(name))}
        self._sent[WANTS_HEADERS] = "true"
        self._wait = wait_of(call)
        self._may_be_done = False
        """True once a try may have had its effect."""
        self._patience = _patience_of(call)
        self._breaks = _breaks_of(call)
        """Connections that broke before the answer began; at its sender, too, if that counts them."""
        self._is_counted = call.header(COUNTS_BREAKS) is not None and self._is_repeatable
        """True if the sender counts such breaks, and sends the request again with the same ids."""

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        async def work() -> None:
            if not (self._is_repeatable or await self._name_turn()):
                await Response(status_code=_NO_CONTENT)(scope, receive, send)
                return
            form, session_id = self._form(), self._place()
            if self._endpoint.answer is say and self._wait:
                await self._say_and_wait(form, session_id, send)
            else:
                await self._hand_on(form, session_id, self._wait, send)

        await unless_gone(receive, work)

    # --- what is asked -------------------------------------------------------------------

    def _form(self) -> HTTPForm:
        """The request as it is handed on: with an id, where a repetition is to be known."""
        call, verb = self._call, self._endpoint.verb
        name, key = _IDS.get(self._name), self._sent.get("idempotency-key")
        if not key and ((name and not self._body.get(name)) or self._endpoint.answer is post_session):
            self._is_counted = False  # sent again by its sender, it would get another id
        if name and not key:
            self._body.setdefault(name, new_secret())
        if self._endpoint.answer is post_session:
            self._sent.setdefault("idempotency-key", new_secret())
        if self._wait and self._endpoint.answer is not say:
            self._sent["prefer"] = f"wait={self._wait:.0f}"
        return HTTPForm(
            verb=verb,
            path=call.address.removeprefix("/v1"),
            query=call.search,
            headers=self._sent,
            body=None if verb in ("GET", "DELETE") else orjson.dumps(self._body),
        )

    async def _name_turn(self) -> bool:
        """Have a stop say the message whose turn it is to stop; False where nothing runs, and so nothing is to be stopped.

        Delivered again, one that names none stops whatever runs by then.

        Raises:
            Problem: nobody says which turn runs; nothing was stopped.
        """
        place, kept = self._call.address.removesuffix("/interrupt"), _Kept()
        await self._hand_on(self._asking(place, 0), self._place(), 0, kept.send)
        known = orjson.loads(kept.data) if kept.status == _OK else {}
        if "turn" not in known:  # it is closed, or its agent does not run: its owner says so
            return True
        if known["turn"] is not None:
            self._body["message_id"] = known["turn"]["message_id"]
        return known["turn"] is not None

    def _place(self) -> str:
        """The session whose owner is asked."""
        if self._endpoint.answer is post_session:
            return id_of_key(self._call, self._sent["idempotency-key"])
        if self._endpoint.answer is past.post_fork:  # it writes the copy alone
            return str(self._body.get("session_id") or fork_id(self._call, self._sent["idempotency-key"]))
        return self._moved.session_id if isinstance(self._moved, SessionMoved) else _session_of(self._call)

    @property
    def _is_repeatable(self) -> bool:
        return self._name != "interrupt" or bool(
            self._body.get("message_id") or self._body.get("drop_queued")
        )

    # --- how it is answered --------------------------------------------------------------

    async def _hand_on(self, form: HTTPForm, session_id: str, wait: float, send: Send) -> None:
        """Ask until there is an answer, and send it.

        Raises:
            Problem: there is none.
        """
        pauses, until = Pauses(longest=LONGEST_PAUSE), trio.current_time() + self._patience
        seconds = wait + float(self._body.get("deadline", 0))
        while not await self._try(form, session_id, seconds, until, send):
            left = until - trio.current_time()
            if left <= 0:
                fields: dict[str, Any] = {"may_be_done": True} if self._may_be_done else {}
                raise Problem("unavailable", "no node has answered for this session: try again", **fields)
            await trio.sleep(min(pauses.next(), left))

    async def _try(self, form: HTTPForm, session_id: str, seconds: float, until: float, send: Send) -> bool:
        """Ask once; False where it is to be asked again."""
        has_begun, is_read = False, form.verb == "GET"
        try:
            async with self._way.relay(form, **self._asker(session_id, seconds)) as answer:
                if answer.is_stream and answer.status < _FIRST_ERROR:
                    has_begun = True
                    await _stream(answer, send)
                data = b"".join([each async for each in answer.pieces])  # of a stream nothing is left
        except ConnectionLost as lost:
            self._may_be_done |= lost.was_sent and not is_read
            if not has_begun:
                if lost.was_sent and not (is_read or self._is_repeatable):
                    words = "the connection was lost: this may have been done"
                    raise Problem("unavailable", words, may_be_done=True) from lost
                if lost.is_broken:
                    self._note_break(lost)
                is_stored = isinstance(lost, NoOwner) and self._endpoint.answer is say and not self._breaks
                return is_stored and await self._store(form, session_id, send)
        if has_begun:  # a stream that was cut off ends: its client comes back
            await _send(send, b"", is_last=True)
            return True
        is_passing = answer.status >= _FIRST_ERROR and any(each in data for each in _AGAIN)
        if is_passing and trio.current_time() < until - 1:
            return False
        await self._send_whole(answer, data, send)
        return True

    def _note_break(self, lost: ConnectionLost) -> None:
        """Count a connection that broke, so that a request which ends its node does not end all of them.

        Raises:
            Problem: The sender counts, or there were `MAX_BREAKS` breaks.
        """
        fields: dict[str, Any] = {"may_be_done": True} if self._may_be_done else {}
        if self._is_counted:
            words = "the connection to the node broke before it answered"
            raise Problem("unavailable", words, broken=True, retry_after=0, **fields) from lost
        self._breaks += 1
        if self._breaks >= MAX_BREAKS:
            words = (
                f"{self._breaks} connections to nodes broke while this request was under way: "
                "it may end each node that serves it"
            )
            raise Problem("poison", words, **fields) from lost

    async def _store(self, form: HTTPForm, session_id: str, send: Send) -> bool:
        """Store a message for the next owner and acknowledge it; return False if there is an owner by now.

        Raises:
            Problem: The caller does not reach the session.
            SessionClosed: The session was closed.
        """
        call = self._call
        head = await call.head()
        if head.state == "closed":
            raise SessionClosed(session_id)
        message_id = key_for(call, "message_id") or str(self._body["message_id"])
        caller, scopes = call.caller.owner, self._scopes
        self._may_be_done = True
        if not await self._way.store(
            form, session_id=session_id, message_id=message_id, owner=caller, scopes=scopes
        ):
            return False
        response = accepted(call, head, message_id)
        headers = {name.decode(): value.decode("latin-1") for name, value in response.raw_headers}
        await _begin(send, response.status_code, headers)
        await _send(send, bytes(response.body), is_last=True)
        return True

    @property
    def _scopes(self) -> tuple[str, ...]:
        return tuple(each for each in SCOPES if self._call.caller.allows(each))

    def _asker(self, session_id: str, seconds: float) -> dict[str, Any]:
        """Return the session, the caller with its scopes, and the seconds that an answer may take."""
        owner = self._call.caller.owner
        return {"session_id": session_id, "owner": owner, "scopes": self._scopes, "seconds": seconds}

    async def _send_whole(self, answer: RelayedAnswer, data: bytes, send: Send) -> None:
        status = answer.status
        if self._may_be_done and status == _DONE.get(self._name) and _OTHERWISE not in data:
            status, data = _NO_CONTENT, b""
        headers = {**answer.headers, "content-length": str(len(data))}
        if status == _NO_CONTENT:
            headers = {}
        if self._may_be_done:
            headers[REPEATED] = "true"
        await _begin(send, status, headers)
        await _send(send, data, is_last=True)

    async def _say_and_wait(self, form: HTTPForm, session_id: str, send: Send) -> None:
        """Say something, and wait for what comes of it by another request: the first one is to be over soon."""
        over = trio.current_time() + self._wait
        kept = _Kept()
        await self._hand_on(form, session_id, 0, kept.send)
        left = math.ceil(over - trio.current_time())
        if kept.status != _ACCEPTED or left < 1:
            await kept.hand_on(send)
            return
        found = _Kept()
        await self._hand_on(self._asking(kept.headers["location"], left), session_id, left, found.send)
        if found.status == _OK:
            is_over = orjson.loads(found.data)["status"] in ("answered", "failed")
            found.status = _OK if is_over else _ACCEPTED
            found.headers["location"] = kept.headers["location"]
        await found.hand_on(send)

    def _asking(self, place: str, seconds: int) -> HTTPForm:
        """The request for what a message came to, or what its session does."""
        headers = {**self._sent, "prefer": f"wait={seconds}"}
        path = place.removeprefix("/v1")
        return HTTPForm(
            verb=_GET_MESSAGE.verb, path=path, query=self._call.search, headers=headers, body=None
        )


def _breaks_of(call: HTTPCall) -> int:
    """Return the number of broken connections that the sender of a request has counted."""
    counted = call.header(COUNTS_BREAKS) or ""
    return int(counted) if counted.isascii() and counted.isdigit() else 0


def _patience_of(call: HTTPCall) -> float:
    """Return the seconds for which a client waits for this request to be taken."""
    try:
        seconds = float(call.header(PATIENCE) or MAX_PATIENCE_SECONDS)
    except ValueError:
        return MAX_PATIENCE_SECONDS
    return min(max(seconds, 0.0), MAX_PATIENCE_SECONDS) if math.isfinite(seconds) else MAX_PATIENCE_SECONDS


@attrs.define
class _Kept:
    """An answer that is looked at before it is sent."""

    status: int = 0
    headers: dict[str, str] = attrs.field(factory=dict)
    data: bytes = b""

    async def send(self, message: Any) -> None:
        """Keep what a response sends."""
        await trio.lowlevel.checkpoint()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
        else:
            self.data += message.get("body", b"")

    async def hand_on(self, send: Send) -> None:
        """Send it."""
        await _begin(send, self.status, self.headers)
        await _send(send, self.data, is_last=True)


async def _stream(answer: RelayedAnswer, send: Send) -> None:
    """Send what comes, piece by piece."""
    await _begin(send, answer.status, answer.headers)
    async for piece in answer.pieces:
        await _send(send, piece)


async def _begin(send: Send, status: int, headers: Mapping[str, str]) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def _send(send: Send, data: bytes, *, is_last: bool = False) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": not is_last})
