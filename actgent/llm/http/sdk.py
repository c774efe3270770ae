"""A provider's SDK, as far as clients use it."""

from typing import Any

import attrs


@attrs.frozen
class Sdk:
    """A provider's SDK client, and the exceptions that it raises."""

    client: Any
    error: type[Exception]
    timeout: type[Exception]


def set_platform(client: Any, platform: object) -> None:
    """Tell an SDK client on which platform it runs.

    It would look that up in a thread at the first call, and a mock clock would jump meanwhile.
    """
    client._platform = platform  # noqa: SLF001 - the one way to say it
