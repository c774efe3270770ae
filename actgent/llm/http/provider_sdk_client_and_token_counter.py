"""The SDK client of a provider, and the provider's endpoint that counts the tokens of a request."""

from typing import Any

import attrs
import httpx2
import msgspec
import trio

from actgent.support.safe_logging import logger_of

COUNT_TIMEOUT_SECONDS = 5.0
"""Maximum seconds of a token count. After it, the caller uses an estimate."""
_UNSUPPORTED_STATUSES = (404, 405, 501)
"""HTTP statuses of servers without an endpoint that counts tokens."""
_log = logger_of(__name__)


@attrs.frozen
class Sdk:
    """The client object of a provider's SDK, and the exception classes that it raises."""

    client: Any
    """Client object of the SDK, such as `openai.AsyncOpenAI`."""
    error: type[Exception]
    """Base class of the SDK's exceptions."""
    timeout: type[Exception]
    """Exception class that the SDK raises after a timeout."""


def set_platform(client: Any) -> None:
    """Set the operating system that an SDK client sends in its headers.

    Without this, the SDK looks up the name in a worker thread during the first request. A mock clock with autojump then
    advances until the thread ends. The SDKs have a public method to read the name, but none to set it.
    """
    client._platform = client.platform_headers()["X-Stainless-OS"]  # noqa: SLF001 - see above


@attrs.define(eq=False)
class TokenCounter:
    """Client of the provider's endpoint that counts the tokens of a request before it is sent."""

    path: str
    """URL path of the endpoint; empty if the API has none."""
    is_supported: bool = attrs.field(init=False)
    """False if the API has no such endpoint, or the server answered 404, 405 or 501."""

    def __attrs_post_init__(self) -> None:
        self.is_supported = bool(self.path)

    async def count(self, sdk: Sdk, content: bytes) -> int | None:
        """Return the provider's token count of a request body; None if the provider fails or does not answer within five seconds."""
        with trio.move_on_after(COUNT_TIMEOUT_SECONDS):
            try:
                response: httpx2.Response = await sdk.client.post(
                    self.path, content=content, cast_to=httpx2.Response
                )
                return _read_count(response.content)
            except (sdk.error, httpx2.HTTPError, httpx2.StreamError) as error:
                self._note_failure(getattr(error, "response", None))
        return None

    def _note_failure(self, response: httpx2.Response | None) -> None:
        status = None if response is None else response.status_code
        if status in _UNSUPPORTED_STATUSES:
            self.is_supported = False
        _log.info(
            "the provider did not count the tokens of a request (status %s): they are estimated", status
        )


def _read_count(body: bytes) -> int | None:
    try:
        decoded: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    count = decoded.get("input_tokens") if isinstance(decoded, dict) else None
    return count if type(count) is int and count > 0 else None
