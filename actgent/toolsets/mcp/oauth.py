"""OAuth 2.1 authorization of MCP servers by the SDK's client and a token file. Imported with the SDK.

The SDK's client handles discovery, registration, PKCE and refresh. This module adds persistence and coordination
between processes:

- The token file also stores the expiry time of the tokens, and the endpoint that refreshes them.
- Tokens are refreshed by one process at a time, also if a server rejects a token.
- The browser is opened only if the caller provides a login.

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
from actgent.support.files_shared_by_processes import file_change

from .oauth_token_file import OAuthSettings, TokenFile

EXPIRY_MARGIN_SECONDS = 30.0
"""Time before its expiry at which a token is refreshed, since a request takes a while."""
PLACEHOLDER_REDIRECT = "http://127.0.0.1/callback"
"""Redirect URI of clients that cannot log in."""
_NO_SECRET: Literal["none"] = "none"  # noqa: S105 - the name of a method
"""Authentication method of a program on a user's machine, which cannot keep a secret (RFC 8252); PKCE protects it."""
_INVALID_GRANT_STATUSES = (400, 401, 403)
"""HTTP statuses of a refresh that mean that the refresh token is invalid. Other error statuses are temporary."""


@attrs.frozen(kw_only=True)
class LoginPrompt:
    """Callbacks by which a user authorizes a server in a browser."""

    redirect_uri: str
    """URI that the browser is redirected to."""
    show: Callable[[str], Awaitable[None]]
    """Function that shows the authorization URL to the user."""
    receive: Callable[[], Awaitable[AuthorizationCodeResult]]
    """Function that waits for the response of the authorization server."""


class StoredTokens:
    """Token storage of the SDK's client in a file; implements the SDK's `TokenStorage`."""

    def __init__(self, file: TokenFile, url: str, settings: OAuthSettings) -> None:
        self.file = file
        self.url = url
        self.context: OAuthContext | None = None
        self._settings = settings
        self._is_locked = False

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Async context manager: lock the token file, so that no other process changes tokens while the block runs."""
        async with file_change(self.file.path):
            self._is_locked = True
            try:
                yield
            finally:
                self._is_locked = False

    @property
    def is_preregistered(self) -> bool:
        """True if the settings contain a client id, so that the client is not registered dynamically."""
        return bool(self._settings.client_id)

    def read_authorization(self) -> dict[str, Any]:
        """Return the stored authorization of this server; empty if no authorization is stored."""
        return self.file.read(self.url)

    async def get_tokens(self) -> OAuthToken | None:
        tokens = self.read_authorization().get("tokens")
        return None if tokens is None else OAuthToken.model_validate(tokens)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        settings = self._settings
        if settings.client_id:
            return OAuthClientInformationFull(
                client_id=settings.client_id,
                client_secret=settings.client_secret or None,
                token_endpoint_auth_method=_secret_method(self.context)
                if settings.client_secret
                else _NO_SECRET,
                redirect_uris=[AnyUrl(PLACEHOLDER_REDIRECT)],
            )
        client = self.read_authorization().get("client")
        return None if client is None else OAuthClientInformationFull.model_validate(client)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        expires_at = None if tokens.expires_in is None else time.time() + int(tokens.expires_in)
        context = self.context
        more = {
            "tokens": _to_plain_model(tokens),
            "expires_at": expires_at,
            "metadata": _to_plain_model(context and context.oauth_metadata),
            "resource": _to_plain_model(context and context.protected_resource_metadata),
            "issuer": context and context.auth_server_url,
        }
        await self._put(more)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        await self._put({"client": _to_plain_model(client_info)})

    async def _put(self, more: dict[str, Any]) -> None:
        if self._is_locked:
            self.file.write(self.url, {**self.read_authorization(), **more})
            return
        async with self.locked():
            self.file.write(self.url, {**self.read_authorization(), **more})


class StoredOAuth(OAuthClientProvider):
    """The SDK's OAuth client with tokens in a file.

    `problem` is the reason why the authorization failed; empty if it has not failed.
    """

    def __init__(self, name: str, url: str, settings: OAuthSettings, asked: LoginPrompt | None) -> None:
        self.name = name
        self.problem = ""
        self.storage = StoredTokens(TokenFile(settings.tokens), url, settings)
        self._asked = asked
        metadata = OAuthClientMetadata(
            client_name="actgent",
            redirect_uris=[AnyUrl(asked.redirect_uri if asked else PLACEHOLDER_REDIRECT)],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
            token_endpoint_auth_method=_NO_SECRET,
            scope=settings.scope or None,
        )
        super().__init__(
            url,
            metadata,
            self.storage,
            redirect_handler=self._show,
            callback_handler=self._receive,
            client_metadata_url=settings.client_metadata_url or None,
        )
        self.storage.context = self.context

    async def _show(self, url: str) -> None:
        if self._asked is None:
            self.problem = f"it is not authorized yet: run actgent mcp login FILE {self.name}"
            raise OAuthFlowError(self.problem)
        await self._set_client_method()
        await self._asked.show(url)

    async def _receive(self) -> AuthorizationCodeResult:
        assert self._asked is not None  # noqa: S101 - the SDK calls `_show` first
        return await self._asked.receive()

    async def _initialize(self) -> None:
        """Load the stored state, including the expiry time and the refresh endpoint, which the SDK does not restore."""
        await super()._initialize()
        stored, context = self.storage.read_authorization(), self.context
        context.token_expiry_time = (
            None if stored.get("expires_at") is None else stored["expires_at"] - EXPIRY_MARGIN_SECONDS
        )
        if stored.get("metadata") is not None:
            context.oauth_metadata = OAuthMetadata.model_validate(stored["metadata"])
        if stored.get("resource") is not None:
            context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(stored["resource"])
        context.auth_server_url = stored.get("issuer") or context.auth_server_url
        await self._set_client_method()

    async def _set_client_method(self) -> None:
        """Load a pre-registered client again after the discovery, because its authentication method depends on the discovered metadata.

        Other clients are unchanged.
        """
        if self.storage.is_preregistered:
            self.context.client_info = await self.storage.get_client_info()

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Authorize a request with the SDK's flow: yield each HTTP request to send, and receive its response.

        Expired tokens are refreshed under the file lock, so that other processes use the new tokens.
        """
        context = self.context
        if not self._initialized:
            await self._initialize()
        if not context.is_token_valid() and context.can_refresh_token():
            async with self.storage.locked():
                await self._initialize()  # another process may have refreshed the tokens
                if not context.is_token_valid() and context.can_refresh_token():
                    answer = yield await self._refresh_token()
                    await self._process_refresh(answer)
        flow = super()._auth_flow(request)
        try:
            response = yield await anext(flow)
            if response.status_code == httpx2.codes.UNAUTHORIZED and context.can_refresh_token():
                refused = context.current_tokens.access_token if context.current_tokens else ""
                async with self.storage.locked():
                    await self._initialize()
                    if self._has_only(refused) and context.can_refresh_token():
                        answer = yield await self._refresh_token()
                        await self._process_refresh(answer)
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
        """Return True if the stored access token is `token`, or if none is stored: no other process has refreshed it."""
        tokens = self.context.current_tokens
        return tokens is None or tokens.access_token == token

    async def _process_refresh(self, response: httpx2.Response) -> None:
        """Process the authorization server's response to a request for refreshed tokens.

        Raises:
            OAuthFlowError: The authorization server failed temporarily; the stored tokens remain.
        """
        status = response.status_code
        if status != httpx2.codes.OK and status not in _INVALID_GRANT_STATUSES:
            self.problem = f"refreshing its tokens failed: the authorization server answered {status}"
            raise OAuthFlowError(self.problem)
        await self._handle_refresh_response(response)

    def failure(self) -> ToolsetUnavailable | None:
        """Return the error for a connection that failed because the server is not authorized.

        Return None if no authorization problem was recorded.
        """
        return ToolsetUnavailable(self.name, self.problem) if self.problem else None


async def delete_tokens(settings: OAuthSettings, url: str) -> None:
    """Delete the stored authorization of the server at `url`, so that the next connection needs a login."""
    async with file_change(settings.tokens):
        TokenFile(settings.tokens).write(url, {})


def registered_port(settings: OAuthSettings, url: str) -> int:
    """Return the redirect port of this client's earlier registration; 0 if the client is not registered."""
    client = TokenFile(settings.tokens).read(url).get("client") or {}
    try:
        return int(AnyUrl(client["redirect_uris"][0]).port or 0)
    except (KeyError, IndexError, TypeError, ValueError):
        return 0


def _secret_method(context: OAuthContext | None) -> Literal["client_secret_basic", "client_secret_post"]:
    """Return the method with which a client that has a secret authenticates at the token endpoint.

    HTTP Basic is the default of RFC 8414.
    """
    metadata = context and context.oauth_metadata
    supported = (metadata and metadata.token_endpoint_auth_methods_supported) or ["client_secret_basic"]
    if "client_secret_post" in supported and "client_secret_basic" not in supported:
        return "client_secret_post"
    return "client_secret_basic"


def _to_plain_model(model: Any) -> Any:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


def check_authorization_url(url: str) -> str:
    """Check that the URL of an authorization server is safe to open in a browser, and return the URL.

    Raises:
        ConfigurationError: The URL is neither https nor a local address.
    """
    parsed = httpx2.URL(url)
    is_here = parsed.scheme == "http" and parsed.host in ("127.0.0.1", "localhost", "::1")
    if parsed.scheme != "https" and not is_here:
        raise ConfigurationError(
            f"the server's authorization URL must be an https URL or a local address, not {str(parsed)[:200]!r}"
        )
    return str(parsed)
