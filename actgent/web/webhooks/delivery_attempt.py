"""One attempt to deliver a notification: with a timeout, a guard against internal addresses, and no redirects."""

import time
from email.utils import parsedate_to_datetime

import attrs
import httpx2
import trio

from actgent.errors import AddressBlocked

from .notifications_from_records import Notification
from .signatures import SigningKeys

MAX_PAUSE_SECONDS = 3600.0
"""Maximum number of seconds between two attempts."""
_GONE = 410
_HEADERS = {"content-type": "application/json", "user-agent": "actgent-webhooks"}


@attrs.frozen(kw_only=True)
class Attempt:
    """Result of one delivery attempt."""

    problem: str = ""
    """Reason why the delivery failed; empty if it succeeded."""
    is_final: bool = False
    """True if a retry cannot succeed."""
    pause: float = 0.0
    """Seconds to wait before the next attempt, from `Retry-After`; 0 if the receiver asked for no pause."""


async def deliver(
    client: httpx2.AsyncClient, url: str, notification: Notification, keys: SigningKeys, seconds: float
) -> Attempt:
    """Send a notification once and return the result; errors are not raised.

    Only the status and `Retry-After` of the response are read. `seconds` is the timeout.
    """
    headers = {
        **_HEADERS,
        **notification.headers,
        **keys.headers(notification.id, int(time.time()), notification.body),
    }
    with trio.move_on_after(seconds):
        try:
            request = client.build_request(
                "POST", url, headers=headers, content=notification.body, timeout=None
            )
            response = await client.send(request, stream=True)
            try:
                return _attempt_from(response)
            finally:
                with trio.CancelScope(deadline=trio.current_time() + 1, shield=True):
                    await response.aclose()
        except AddressBlocked as error:
            return Attempt(problem=str(error), is_final=True)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            return Attempt(problem=f"no response: {type(error).__name__}")
    return Attempt(problem=f"no response within {seconds:g} s")


def _attempt_from(response: httpx2.Response) -> Attempt:
    if response.is_success:
        return Attempt()
    if response.is_redirect:
        return Attempt(problem=f"the receiver redirects ({response.status_code}); redirects are not followed")
    return Attempt(
        problem=f"the receiver answered {response.status_code}",
        is_final=response.status_code == _GONE,
        pause=_retry_after(response.headers.get("retry-after", "")),
    )


def _retry_after(text: str) -> float:
    """Return the seconds of a `Retry-After` header: a number or a date (RFC 9110, 10.2.3); 0 if it is neither."""
    if text.isascii() and text.isdigit():
        return min(float(text[:6]), MAX_PAUSE_SECONDS)
    try:
        return min(max(0.0, parsedate_to_datetime(text).timestamp() - time.time()), MAX_PAUSE_SECONDS)
    except (TypeError, ValueError, OverflowError):
        return 0.0
