"""A provider's SDK, as far as clients use it."""

from typing import Any

import attrs


@attrs.frozen
class Sdk:
    """A provider's SDK client, and the exceptions that it raises."""

    client: Any
    error: type[Exception]
    timeout: type[Exception]


def set_platform(client: Any) -> None:
    """Set the operating system that an SDK client names in its headers.

    Without it, the first request looks the name up in a worker thread, and a mock clock with autojump
    moves forward until the thread ends. The SDKs have a public method to read the name, but none to set it.
    """
    client._platform = client.platform_headers()["X-Stainless-OS"]  # noqa: SLF001 - see above
