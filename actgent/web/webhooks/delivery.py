"""One attempt to tell a receiver something: bounded in time, through the guard, without redirects."""

import time
from email.utils import parsedate_to_datetime

import attrs
import httpx2
import trio

from actgent.errors import AddressRefused

from .notifications import Notification
from .signing import SigningKeys

MAX_PAUSE = 3600.0
"""Seconds between two attempts, at most."""
_GONE = 410
_HEADERS = {"content-type": "application/json", "user-agent": "actgent-webhooks"}


@attrs.frozen(kw_only=True)
class Attempt:
    """How an attempt went."""

    problem: str = ""
    """Why the receiver did not take it, in our words; empty: it did."""
    is_final: bool = False
    """True: a further attempt would go as this one."""
    pause: float = 0.0
    """Seconds that the receiver wants to be left alone for."""


async def deliver(
    client: httpx2.AsyncClient, url: str, notification: Notification, keys: SigningKeys, seconds: float
) -> Attempt:
    """Send a notification once. What a receiver answers is not read, but for its status."""
    headers = {**_HEADERS, **keys.headers(notification.id, int(time.time()), notification.body)}
    with trio.move_on_after(seconds):
        try:
            request = client.build_request(
                "POST", url, headers=headers, content=notification.body, timeout=None
            )
            response = await client.send(request, stream=True)
            try:
                return _read(response)
            finally:
                with trio.CancelScope(deadline=trio.current_time() + 1, shield=True):
                    await response.aclose()
        except AddressRefused as error:
            return Attempt(problem=str(error), is_final=True)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            return Attempt(problem=f"no answer: {type(error).__name__}")
    return Attempt(problem=f"no answer within {seconds:g} s")


def _read(response: httpx2.Response) -> Attempt:
    if response.is_success:
        return Attempt()
    if response.is_redirect:
        return Attempt(problem=f"it redirects ({response.status_code}), which is not followed")
    return Attempt(
        problem=f"it answered {response.status_code}",
        is_final=response.status_code == _GONE,
        pause=_retry_after(response.headers.get("retry-after", "")),
    )


def _retry_after(text: str) -> float:
    """Seconds, from the header `Retry-After`: a number, or a date (RFC 9110, 10.2.3)."""
    if text.isascii() and text.isdigit():
        return min(float(text[:6]), MAX_PAUSE)
    try:
        return min(max(0.0, parsedate_to_datetime(text).timestamp() - time.time()), MAX_PAUSE)
    except (TypeError, ValueError, OverflowError):
        return 0.0
