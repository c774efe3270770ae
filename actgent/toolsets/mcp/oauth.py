"""Authorization of MCP servers by OAuth 2.1, by the SDK's client and a file of tokens. Imported with the SDK.

The SDK's client discovers, registers, proves and refreshes. Here is what it needs between runs and beside others: tokens
with the moment at which they expire and the endpoint that refreshes them, one refresh at a time over processes, a refresh
where a server takes a token no more, and a person only where somebody has said how to reach one.

Specification: https://modelcontextprotocol.io/specification/draft/basic/authorization
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import attrs
import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl

from actgent.errors import ConfigurationError, ToolsetUnavailable
from actgent.support.files import file_change

from .tokens import OAuthSettings, TokenFile

MARGIN = 30.0
"""Seconds before its end from which on a token is refreshed: a request takes a while."""
PLACEHOLDER = "http://127.0.0.1/callback"
_NO_SECRET: Literal["none"] = "none"  # noqa: S105 - the name of a method
"""A program on somebody's machine keeps no secret (RFC 8252); PKCE proves that it is the one that asked."""
_BAD_GRANTS = (400, 401, 403)
"""Answers to a refresh that say that the token is worth nothing any more; others say that it is not the moment."""


@attrs.frozen(kw_only=True)
class AskedForCode:
    """How a person is asked to authorize a server."""

    redirect_uri: str
    show: Callable[[str], Awaitable[None]]
    """Shows the address at which to do it."""
    receive: Callable[[], Awaitable[AuthorizationCodeResult]]
    """Waits for what the authorization server says then."""


class StoredTokens:
    """What the SDK's client keeps, in a file; `TokenStorage` of the SDK."""

    def __init__(self, file: TokenFile, url: str, settings: OAuthSettings) -> None:
        self.file = file
        self.url = url
        self.context: OAuthContext | None = None
        self._settings = settings
        self._is_held = False

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """A block in which no other process refreshes or changes tokens."""
        async with file_change(self.file.path):
            self._is_held = True
            try:
                yield
            finally:
                self._is_held = False

    def known(self) -> dict[str, Any]:
        """Return what the file holds of this server."""
        return self.file.read(self.url)

    async def get_tokens(self) -> OAuthToken | None:
        tokens = self.known().get("tokens")
        return None if tokens is None else OAuthToken.model_validate(tokens)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        settings = self._settings
        if settings.client_id:
            return OAuthClientInformationFull(
                client_id=settings.client_id,
                client_secret=settings.client_secret or None,
                token_endpoint_auth_method="client_secret_post" if settings.client_secret else _NO_SECRET,
                redirect_uris=[AnyUrl(PLACEHOLDER)],
            )
        client = self.known().get("client")
        return None if client is None else OAuthClientInformationFull.model_validate(client)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        expires_at = None if tokens.expires_in is None else time.time() + int(tokens.expires_in)
        context = self.context
        more = {
            "tokens": _plain(tokens),
            "expires_at": expires_at,
            "metadata": _plain(context and context.oauth_metadata),
            "resource": _plain(context and context.protected_resource_metadata),
            "issuer": context and context.auth_server_url,
        }
        await self._put(more)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        await self._put({"client": _plain(client_info)})

    async def _put(self, more: dict[str, Any]) -> None:
        if self._is_held:
            self.file.write(self.url, {**self.known(), **more})
            return
        async with self.held():
            self.file.write(self.url, {**self.known(), **more})


class StoredOAuth(OAuthClientProvider):
    """The SDK's client with a file of tokens. `problem` says why a server could not be authorized."""

    def __init__(self, name: str, url: str, settings: OAuthSettings, asked: AskedForCode | None) -> None:
        self.name = name
        self.problem = ""
        self.stored = StoredTokens(TokenFile(settings.tokens), url, settings)
        self._asked = asked
        metadata = OAuthClientMetadata(
            client_name="actgent",
            redirect_uris=[AnyUrl(asked.redirect_uri if asked else PLACEHOLDER)],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
            token_endpoint_auth_method=_NO_SECRET,
            scope=settings.scope or None,
        )
        super().__init__(
            url, metadata, self.stored, redirect_handler=self._show, callback_handler=self._receive
        )
        self.stored.context = self.context

    async def _show(self, url: str) -> None:
        if self._asked is None:
            self.problem = f"it has to be authorized by a person: actgent mcp login FILE {self.name}"
            raise OAuthFlowError(self.problem)
        await self._asked.show(url)

    async def _receive(self) -> AuthorizationCodeResult:
        assert self._asked is not None  # noqa: S101 - `_show` comes first
        return await self._asked.receive()

    async def _initialize(self) -> None:
        """Read what is known from before, with what the SDK leaves out: when tokens expire, and who refreshes them."""
        await super()._initialize()
        known, context = self.stored.known(), self.context
        context.token_expiry_time = None if known.get("expires_at") is None else known["expires_at"] - MARGIN
        if known.get("metadata") is not None:
            context.oauth_metadata = OAuthMetadata.model_validate(known["metadata"])
        if known.get("resource") is not None:
            context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(known["resource"])
        context.auth_server_url = known.get("issuer") or context.auth_server_url

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """The SDK's flow, with refreshes that other processes see; they come before a person is asked."""
        context = self.context
        if not self._initialized:
            await self._initialize()
        if not context.is_token_valid() and context.can_refresh_token():
            async with self.stored.held():
                await self._initialize()  # another process may have been faster
                if not context.is_token_valid() and context.can_refresh_token():
                    answer = yield await self._refresh_token()
                    await self._refreshed(answer)
        flow = super()._auth_flow(request)
        try:
            response = yield await anext(flow)
            if response.status_code == httpx2.codes.UNAUTHORIZED and context.can_refresh_token():
                refused = context.current_tokens.access_token if context.current_tokens else ""
                async with self.stored.held():
                    await self._initialize()
                    if self._has_only(refused) and context.can_refresh_token():
                        answer = yield await self._refresh_token()
                        await self._refreshed(answer)
                if not self._has_only(refused):
                    self._add_auth_header(request)
                    response = yield request
            while True:
                response = yield await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

    def _has_only(self, token: str) -> bool:
        """Return True if there is no other token than this one."""
        tokens = self.context.current_tokens
        return tokens is None or tokens.access_token == token

    async def _refreshed(self, response: httpx2.Response) -> None:
        """Take the answer to a refresh.

        Raises:
            OAuthFlowError: it is not the moment; what there is stays.
        """
        status = response.status_code
        if status != httpx2.codes.OK and status not in _BAD_GRANTS:
            self.problem = f"its tokens cannot be refreshed now: the authorization server answered {status}"
            raise OAuthFlowError(self.problem)
        await self._handle_refresh_response(response)

    def failure(self) -> ToolsetUnavailable | None:
        """The error of a connection that failed because the server was not authorized; None: it is not that."""
        return ToolsetUnavailable(self.name, self.problem) if self.problem else None


async def forget(settings: OAuthSettings, url: str) -> None:
    """Remove what is known of a server's authorization."""
    async with file_change(settings.tokens):
        TokenFile(settings.tokens).write(url, {})


def registered_port(settings: OAuthSettings, url: str) -> int:
    """The port to which a client redirects that registered itself before; 0: there is none."""
    client = TokenFile(settings.tokens).read(url).get("client") or {}
    try:
        return int(AnyUrl(client["redirect_uris"][0]).port or 0)
    except (KeyError, IndexError, TypeError, ValueError):
        return 0


def _plain(model: Any) -> Any:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


def checked_address(url: str) -> str:
    """An authorization server's address, for a person to open.

    Raises:
        ConfigurationError: it is not one of the web.
    """
    parsed = httpx2.URL(url)
    is_here = parsed.scheme == "http" and parsed.host in ("127.0.0.1", "localhost", "::1")
    if parsed.scheme != "https" and not is_here:
        raise ConfigurationError(
            f"the server wants to be authorized at {str(parsed)[:200]!r}, which is not https"
        )
    return str(parsed)
