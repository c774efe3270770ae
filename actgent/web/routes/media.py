"""Endpoint that downloads pictures and files of a session, from its messages and tool results.

Events name each picture or file by a `media_id`: the number of its record and its index in the record, for example `12-0`. The content
is untrusted, so it is sent with headers that prevent browsers from showing it as a page of this origin.
"""

import re

from starlette.responses import Response

from actgent.messages import Medium
from actgent.web.problem_documents import missing

from .common_request_schemas import AGENT
from .endpoints import READS_JOURNAL, Endpoint, HTTPCall
from .json_serializers import media_of_record

_ID = re.compile(r"([1-9][0-9]{0,14})-(0|[1-9][0-9]{0,4})")
_SHOWN = re.compile(r"image/(png|jpeg|gif|webp)|audio/[a-z0-9.+-]{1,40}|application/pdf")
"""Media types that are sent unchanged, since browsers run no scripts in them. Other media are sent as
`application/octet-stream`.
"""
_HEADERS = {"content-disposition": "attachment", "content-security-policy": "default-src 'none'; sandbox"}


async def get_medium(call: HTTPCall) -> Response:
    """Download a picture or file of a session. Types other than images, audio and PDF are sent as `application/octet-stream`."""
    head, found = await call.head(), _ID.fullmatch(call.path["media_id"])
    number = int(found[1]) if found is not None else 0
    if found is None or number > head.records:
        raise missing()
    records = await call.gateway.access.journal.read(
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
        forwarding=READS_JOURNAL,
        scope="read",
        query={"agent": AGENT},
        media_type="application/octet-stream",
    ),
)
