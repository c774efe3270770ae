"""The tokens of a request as its provider counts them, asked for before it is sent."""

from typing import Any

import attrs
import httpx2
import msgspec
import trio

from actgent.support.logs import logger_of

from .sdk import Sdk

SECONDS = 5.0
"""Until when a count is of use; without it the estimate has to do."""
_NOT_THERE = (404, 405, 501)
"""What servers answer that do not count."""
_log = logger_of(__name__)


@attrs.define(eq=False)
class TokenCounter:
    """The address at which a provider counts requests; one that it does not have is asked for once."""

    path: str
    """Empty: the API has none."""
    is_there: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.is_there = bool(self.path)

    async def ask(self, sdk: Sdk, content: bytes) -> int | None:
        """Return how many tokens a request takes; None where nobody says so within five seconds."""
        with trio.move_on_after(SECONDS):
            try:
                response: httpx2.Response = await sdk.client.post(
                    self.path, content=content, cast_to=httpx2.Response
                )
                return _read(response.content)
            except (sdk.error, httpx2.HTTPError, httpx2.StreamError) as error:
                self._note(getattr(error, "response", None))
        return None

    def _note(self, response: httpx2.Response | None) -> None:
        status = None if response is None else response.status_code
        if status in _NOT_THERE:
            self.is_there = False
        _log.info("the provider did not count a request (status %s), so it is estimated", status)


def _read(body: bytes) -> int | None:
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    count = found.get("input_tokens") if isinstance(found, dict) else None
    return count if type(count) is int and count > 0 else None
