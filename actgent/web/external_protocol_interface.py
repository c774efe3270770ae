"""Interface of the protocols that a gateway serves in addition to its own API; `actgent.interop` implements some."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol


class OutsideProtocol(Protocol):
    """A protocol of other products, such as the OpenAI API, that a gateway serves in addition to its own API."""

    @property
    def name(self) -> str:
        """Name of the protocol on the command line, for `actgent serve --protocol`."""

    @property
    def title(self) -> str:
        """Name of the protocol in texts for users."""

    @property
    def address(self) -> str:
        """URL path that users enter in their client, for example as base URL."""

    @property
    def background(self) -> Callable[[Any], Awaitable[object]] | None:
        """Function that is called with the `GatewayContext` when the gateway opens; None if there is nothing to start."""

    @property
    def endpoints(self) -> Sequence[Any]:
        """Endpoints of the protocol (`web.routes.endpoints.Endpoint`), with full URL paths."""
