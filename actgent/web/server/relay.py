"""Requests for sessions that other processes of a cluster have: handed on as they came, and answered as they are there.

Who asks has been checked here, and says in the other process what it may do. A request is repeated as a client repeats
it: what reads always, what has an effect by an id, which it is given here if it has none. A stream that is cut off ends
here, too; its client comes back with the number that it saw last, and goes on where the session lives by then.
"""

import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

import attrs
import orjson
import trio
from starlette.responses import Response
from starlette.types import Receive, Scope as ASGIScope, Send

from actgent.approvals import session_of
from actgent.client.calls import Pauses
from actgent.client.http.forms import ALONG, REPEATED, WANTED, HTTPForm
from actgent.client.transport import ConnectionLost
from actgent.errors import Fenced, SessionMoved
from actgent.messages import new_secret
from actgent.web.problems import Problem
from actgent.web.routes import agents, media, past, signing_in
from actgent.web.routes.chat import ENDPOINTS as CHAT, get_feedback, say, wait_of
from actgent.web.routes.endpoints import Endpoint, HTTPCall
from actgent.web.routes.repeating import fork_id, id_of_key
from actgent.web.routes.sessions import post_session
from actgent.web.streaming.streams import unless_gone
from actgent.web.tokens import SCOPES

PATIENCE = 30.0
"""Seconds for which a request is handed on, until its session is served."""
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
_OF_GATEWAY = frozenset(
    {
        agents.live,
        agents.openapi,
        agents.show_metrics,
        agents.list_webhooks,
        agents.redeliver,
        signing_in.exchange_key,
        signing_in.get_token,
    }
)
"""What a gateway answers by itself that hosts no agents."""
_IDS = {"say": "message_id", "schedule": "key", "delegate": "task_id", "post_fork": "session_id"}
"""Fields of bodies by which a repetition is known."""
_DONE = {"post_decision": 409, "unschedule": 404, "cancel_task": 404, "erase": 404}
"""The status of a repetition of what was done the first time."""
_OTHERWISE = b'"as_asked":false'
"""In an answer: what is so now is not what was asked for."""
_AGAIN = (b'"/errors/busy"', b'"moved":true')
"""In an answer: nothing was done, and the same request may be taken a little later."""
_GET_MESSAGE = next(each for each in CHAT if each.answer.__name__ == "get_message")
_OK, _ACCEPTED, _NO_CONTENT, _FIRST_ERROR = 200, 202, 204, 400


@attrs.frozen(kw_only=True)
class RelayedAnswer:
    """The beginning of an answer, and what follows."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncGenerator[bytes, None]
    is_repeated: bool = False
    """True: the request may have had its effect before."""

    @property
    def is_stream(self) -> bool:
        """True if it is told on as it comes."""
        return not self.headers.get("content-type", "").startswith(
            ("application/json", "application/problem")
        )


@runtime_checkable
class Way(Protocol):
    """What hands requests on; it tries once."""

    def relay(
        self, form: HTTPForm, *, session_id: str, owner: str, scopes: tuple[str, ...], seconds: float
    ) -> AbstractAsyncContextManager[RelayedAnswer]:
        """Ask the process that has a session, or any where none is named.

        Raises:
            ConnectionLost: there is no answer, or no more of it.
        """


@attrs.frozen(kw_only=True)
class Relay:
    """A gateway's way to sessions that live elsewhere."""

    way: Way
    owns: Callable[[str], bool]
    """Tells by its id whether a session lives in this process."""
    is_all: bool = False
    """True: no agents and no journal are in this process, so all is asked elsewhere."""

    def takes(self, endpoint: Endpoint, call: HTTPCall) -> bool:
        """Return True for a request of a session that lives elsewhere and that only its owner can answer."""
        if self.is_all:
            return endpoint.answer not in _OF_GATEWAY
        session_id = _session_of(call)
        return bool(session_id) and endpoint.answer not in _OF_JOURNAL and not self.owns(session_id)

    def answer(self, endpoint: Endpoint, call: HTTPCall, moved: Fenced | None = None) -> Response:
        """Return what hands a request on; `moved` is the error with which it was refused here."""
        return RelayedResponse(self.way, endpoint, call, moved)


def _session_of(call: HTTPCall) -> str:
    if "id" not in call.path:
        return ""
    is_approval = call.address.startswith("/v1/approvals/")
    return session_of(call.path["id"]) if is_approval else call.path["id"]


class RelayedResponse(Response):
    """An answer that another process gives."""

    def __init__(self, way: Way, endpoint: Endpoint, call: HTTPCall, moved: Fenced | None) -> None:
        super().__init__()
        self._way, self._endpoint, self._call, self._moved = way, endpoint, call, moved
        self._name = endpoint.answer.__name__
        self._body = dict(call.body)
        self._sent: dict[str, str] = {name: value for name in _SENT if (value := call.header(name))}
        self._sent[WANTS_HEADERS] = "true"
        self._wait = wait_of(call)
        self._may_be_done = False

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
        if (name := _IDS.get(self._name)) and not self._sent.get("idempotency-key"):
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
        pauses, until = Pauses(), trio.current_time() + PATIENCE
        seconds = wait + float(self._body.get("deadline", 0))
        while not await self._try(form, session_id, seconds, until, send):
            pause = pauses.next()
            if trio.current_time() + pause > until:
                raise Problem("unavailable", "nobody has answered for this session: ask again later")
            await trio.sleep(pause)

    async def _try(self, form: HTTPForm, session_id: str, seconds: float, until: float, send: Send) -> bool:
        """Ask once; False where it is to be asked again."""
        has_begun, is_read = False, form.verb == "GET"
        try:
            async with self._way.relay(form, **self._asker(session_id, seconds)) as answer:
                self._may_be_done |= answer.is_repeated and not is_read
                if answer.is_stream and answer.status < _FIRST_ERROR:
                    has_begun = True
                    await _stream(answer, send)
                data = b"".join([each async for each in answer.pieces])  # of a stream nothing is left
        except ConnectionLost as lost:
            self._may_be_done |= lost.was_sent and not is_read
            if not has_begun:
                if lost.was_sent and not (is_read or self._is_repeatable):
                    raise Problem("unavailable", "nobody knows whether this was done") from lost
                return False
        if has_begun:  # a stream that was cut off ends: its client comes back
            await _send(send, b"", is_last=True)
            return True
        is_passing = answer.status >= _FIRST_ERROR and any(each in data for each in _AGAIN)
        if is_passing and trio.current_time() < until - 1:
            return False
        await self._send_whole(answer, data, send)
        return True

    def _asker(self, session_id: str, seconds: float) -> dict[str, Any]:
        """Who is asked, for whom, and what that one may do."""
        caller = self._call.caller
        scopes = tuple(each for each in SCOPES if caller.allows(each))
        return {"session_id": session_id, "owner": caller.owner, "scopes": scopes, "seconds": seconds}

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
