"""Pictures and files of a session: those that people sent, and those that tools returned.

An event names each of them by a `media_id`, the number of its record and its place there: `12-0`. The bytes are asked for
by that. A stranger may have written them, so no browser shows them as a page of this address.
"""

import re

from starlette.responses import Response

from actgent.messages import Medium
from actgent.web.problems import missing

from .endpoints import Endpoint, HTTPCall
from .schemas import AGENT
from .views import media_of_record

_ID = re.compile(r"([1-9][0-9]{0,14})-(0|[1-9][0-9]{0,4})")
_SHOWN = re.compile(r"image/(png|jpeg|gif|webp)|audio/[a-z0-9.+-]{1,40}|application/pdf")
"""Types that are sent as what they are: a browser runs nothing in them."""
_HEADERS = {"content-disposition": "attachment", "content-security-policy": "default-src 'none'; sandbox"}


async def get_medium(call: HTTPCall) -> Response:
    """The bytes of a picture or file that an event names; of other types than pictures, audio and PDF without their type."""
    head, found = await call.head(), _ID.fullmatch(call.path["media_id"])
    number = int(found[1]) if found is not None else 0
    if found is None or number > head.records:
        raise missing()
    records = await call.gateway.reach.journal.read(
        head.session_id, agent=head.agent, after=number - 1, limit=1
    )
    media: list[Medium] = media_of_record(records[0]) if records else []
    place = int(found[2])
    if place >= len(media) or (data := media[place].data) is None:
        raise missing()
    kind = media[place].media_type
    return Response(
        data, headers=_HEADERS, media_type=kind if _SHOWN.fullmatch(kind) else "application/octet-stream"
    )


ENDPOINTS = (
    Endpoint(
        verb="GET",
        path="/sessions/{id}/media/{media_id}",
        answer=get_medium,
        scope="read",
        query={"agent": AGENT},
        gives="application/octet-stream",
    ),
)
