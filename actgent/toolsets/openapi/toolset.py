"""`OpenAPI`: the operations of an API with an OpenAPI document as a toolset."""

import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import trio

from actgent.errors import AddressBlocked, ConfigurationError
from actgent.errors.text_escaping import counted, shown
from actgent.limits_and_schedules.id_and_number_validation import at_least_one
from actgent.support.safe_logging import logger_of
from actgent.support.unknown_name_hints import lists_arguments
from actgent.tools.callable_kinds import check_rule_function, rule_allows
from actgent.tools.tool_interface import Tool
from actgent.tools.tool_option_checks import check_options
from actgent.tools.tool_registry import make_valid_name
from actgent.toolsets.http.api_credentials import APIKey, Auth, Basic, Bearer, Credentials, check_auth
from actgent.toolsets.http.bounded_http_requests import APIRequest, Connections, is_http_url, origin_of
from actgent.toolsets.http.internal_address_blocking import Guard
from actgent.toolsets.toolset import CONNECT_TIMEOUT_SECONDS, Publish, Toolset, check_name

from .document import APIDocument, Operation, Unsupported, is_server, read_document, read_file
from .operation import OperationTool

MAX_DOCUMENT_BYTES = 20_000_000
"""Maximum size of a fetched document."""
MAX_LOGGED_OPERATIONS = 20
"""Maximum number of skipped operations named in the log."""
_log = logger_of(__name__)


@lists_arguments
class OpenAPI(Toolset):
    """The operations of an API as tools, from its OpenAPI document (3.0, 3.1 or 3.2).

        OpenAPI("api.yaml", tags=["issues"], auth=Bearer(token))

    Operations that cannot become tools are left out; `skipped` has the reasons.

    Args:
        document: The document as a dict, the path of its file (JSON or YAML), or its URL, which is fetched when the
            toolset connects.
        name: Name of the toolset; defaults to the file name, the host, or the document's title.
        server: URL of the API; defaults to the first server of the document.
        tags: Use only operations with one of these tags.
        operations: Use only operations with one of these ids.
        keep: Use only operations for which this function returns True: `lambda operation: operation.method == "get"`.
            It runs in a worker thread if the document is fetched.
        auth: `Bearer(token)`, `Basic(user, password)`, `APIKey(key)`, or a function that returns `Credentials`; or a
            mapping from security schemes of the document to a text or `Basic`. The credentials go only to origins
            that the program names: `server`, the URL of a fetched document, `auth_origins`, and the first server of a
            document that is a dict or a file. Requests to other servers have no credentials.
        auth_origins: Further origins that receive the credentials, such as `https://api.example.com`.
        timeout: Time limit of a call in seconds.
        max_bytes: Maximum size of a response in bytes; longer responses are truncated.
        allow: Hosts and networks that are reachable although they are not public.
        required: True if agents do not start before the document was fetched.
        connect_timeout: Time limit in seconds to fetch the document and to create the tools.

    Raises:
        ConfigurationError: The document is not an OpenAPI document, has no server, or an argument is invalid.
    """

    may_change = False

    def __init__(
        self,
        document: Mapping[str, Any] | str | Path,
        *,
        name: str = "",
        server: str = "",
        tags: Iterable[str] = (),
        operations: Iterable[str] = (),
        keep: Callable[[Operation], bool] | None = None,
        auth: Auth | Mapping[str, str | Basic] | None = None,
        auth_origins: Sequence[str] = (),
        timeout: float = 30.0,
        max_bytes: int = 1_000_000,
        allow: Sequence[str] = (),
        required: bool = False,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        at_least_one("max_bytes", max_bytes)
        if not isinstance(auth, Mapping):
            check_auth(auth)
        self.required = required
        self.connect_timeout = connect_timeout
        self.skipped: dict[str, str] = {}
        """Reasons why operations were left out, by operation id."""
        if server and not is_server(server):
            raise ConfigurationError(
                f"server= must be an http or https URL without user, query and fragment, not {server!r:.200}"
            )
        self._server = server.rstrip("/")
        for argument, given in (("tags", tags), ("operations", operations), ("auth_origins", auth_origins)):
            if isinstance(given, str):
                raise ConfigurationError(f"{argument}= must be a list: {argument}=[{given!r}]")
        if keep is not None:
            check_rule_function("keep=", keep, takes="(operation)")
        self._auth_origins = frozenset(map(_parse_origin, auth_origins))
        self._tags, self._ids, self._keep = frozenset(tags), frozenset(operations), keep
        self._auth = auth
        self._timeout, self._max_bytes = timeout, max_bytes
        self._connections = Connections(Guard(allow))
        self._url = (
            document if isinstance(document, str) and document.startswith(("http://", "https://")) else ""
        )
        if self._url and not is_http_url(self._url):
            raise ConfigurationError(f"the URL of the OpenAPI document is invalid: {self._url!r:.200}")
        if isinstance(document, str) and "://" in document and not self._url:
            raise ConfigurationError(
                f"the URL of an OpenAPI document must begin with http:// or https://, not {document!r:.200}"
            )
        self._tools: tuple[Tool, ...] | None = None
        title = ""
        if not self._url:
            read = APIDocument(document if isinstance(document, Mapping) else read_file(Path(document)))
            title = read.title
            self._tools = self._build_tools(read)
        self.may_change = bool(self._url)
        place = (
            self._url.split("/")[2]
            if self._url
            else Path(document).stem
            if isinstance(document, str | Path)
            else ""
        )
        self.name = check_name(name or make_valid_name(place or title or "openapi"))

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Tools of the document. Empty while a document at a URL has not been fetched."""
        return self._tools or ()

    async def run(self, publish: Publish) -> None:
        async with self._connections.keep_open():
            if self._tools is None:
                body = await self._fetch()
                self._tools = await trio.to_thread.run_sync(self._read, body)
            publish(self._tools)
            await trio.sleep_forever()

    def _read(self, body: bytes) -> tuple[Tool, ...]:
        """Parse a fetched document, and create its tools. Runs in a worker thread, and stops between two steps if cancelled."""
        check = trio.from_thread.check_cancelled
        data = read_document(body, name=self._url, check=check)
        return self._build_tools(APIDocument(data, origin=self._url), check=check)

    async def _fetch(self) -> bytes:
        request = APIRequest(method="GET", url=self._url, max_bytes=MAX_DOCUMENT_BYTES)
        try:
            response = await self._connections.send(request)
        except AddressBlocked as error:
            host = urlsplit(self._url).hostname
            raise ConfigurationError(
                f"the document at {self._url} cannot be fetched: {error}. If this is intended, write allow=[{host!r}]"
            ) from error
        if response.is_truncated:
            raise ConfigurationError(
                f"the document at {self._url} must have at most {MAX_DOCUMENT_BYTES:,} bytes"
            )
        return response.body

    def _build_tools(
        self, document: APIDocument, *, check: Callable[[], object] = lambda: None
    ) -> tuple[Tool, ...]:
        """Create a tool for each selected operation of an OpenAPI document.

        Log operations that cannot become a tool. `check` may raise to stop.
        """
        auth = credentials_by_scheme(document, self._auth) if isinstance(self._auth, Mapping) else self._auth
        tools: dict[str, Tool] = {}
        operations = document.operations(self.skipped)
        foreign = set[str]()
        for operation in operations:
            check()
            if not self._is_selected(operation):
                continue
            try:
                server = self._server or document.server(operation)
                is_named = auth is None or origin_of(server) in self._origins(document)
                tool = self._tool(document, operation, server, auth if is_named else None)
                if not is_named:
                    foreign.add(origin_of(server))
            except (Unsupported, ConfigurationError, RecursionError) as error:
                self.skipped[operation.id] = str(error) or type(error).__name__
            else:
                if tool.name in tools:  # two operations with the same id
                    tool.name = _free_name(operation, tools)
                tools[tool.name] = tool
        self._check_selection(operations, tools)
        if foreign:
            _log.warning(
                "%s: the document names %s, but the program does not, so requests to it have no credentials; "
                "pass server= or auth_origins= to allow that",
                shown(self._url or document.title),
                shown(", ".join(sorted(foreign)[:MAX_LOGGED_OPERATIONS])),
            )
        if self.skipped:
            names = ", ".join(
                f"{name} ({reason})" for name, reason in list(self.skipped.items())[:MAX_LOGGED_OPERATIONS]
            )
            _log.warning(
                "%s: %s",
                counted(
                    len(self.skipped), "operation of an API was skipped", "operations of an API were skipped"
                ),
                shown(names),
            )
        return tuple(tools.values())

    def _origins(self, document: APIDocument) -> frozenset[str]:
        """Return the origins that receive credentials: the origins of the URLs that the program has named.

        If the program names no URL, return the origin of the document's first server.
        """
        named = self._server or self._url
        if not named:
            try:
                named = document.server()
            except ConfigurationError:
                return self._auth_origins
        return self._auth_origins | {origin_of(named)}

    def _tool(self, document: APIDocument, operation: Operation, server: str, auth: Auth | None) -> Tool:
        tool = OperationTool(
            document,
            operation,
            connections=self._connections,
            auth=auth,
            server=server,
            timeout=self._timeout,
            max_bytes=self._max_bytes,
        )
        tool.name = make_valid_name(tool.name)
        check_options(tool)
        return tool

    def _is_selected(self, operation: Operation) -> bool:
        return (
            (not self._tags or bool(self._tags & set(operation.tags)))
            and (not self._ids or operation.id in self._ids)
            and (self._keep is None or rule_allows("keep=", self._keep(operation)))
        )

    def _check_selection(self, operations: Sequence[Operation], tools: Mapping[str, Tool]) -> None:
        """Raise `ConfigurationError` if the document lacks a selected operation or tag, or if no operation became a tool.

        Args:
            operations: All valid operations of the document.
            tools: The created tools by name.
        """
        for kind, wanted, known in (
            ("operation", self._ids, {each.id for each in operations}),
            ("tag", self._tags, {tag for each in operations for tag in each.tags}),
        ):
            if missing := sorted(wanted - known):
                raise ConfigurationError(
                    f"the document has no {kind} {missing[0]!r} (available: {', '.join(sorted(known)[:MAX_LOGGED_OPERATIONS])})"
                )
        if not tools and self.skipped:
            reason = next(iter(self.skipped.values()))
            raise ConfigurationError(f"no operation of the document can become a tool: {reason}")


def _free_name(operation: Operation, taken: Container[str]) -> str:
    """Return a tool name that is not in `taken`, made of the method and path of an operation, and a number if necessary."""
    default = operation.default_id
    names = (make_valid_name(default if n == 1 else f"{default}_{n}") for n in itertools.count(1))
    return next(name for name in names if name not in taken)


def _parse_origin(url: str) -> str:
    """Return the origin (scheme, host, port) of an item of `auth_origins=`.

    Raise `ConfigurationError` if the item is not an http or https URL.
    """
    if not is_server(url):
        raise ConfigurationError(
            f"auth_origins= must contain origins such as https://api.example.com, not {url!r:.200}"
        )
    return origin_of(url)


def credentials_by_scheme(document: APIDocument, values: Mapping[str, str | Basic]) -> Auth:
    """Make the `auth` function for a mapping from security schemes of a document to a text or `Basic`.

    Raises:
        ConfigurationError: The document lacks one of the schemes, or a scheme needs another kind of value.
    """
    schemes = document.security_schemes()
    try:
        parts = [
            _scheme_credentials(name, document.resolve(schemes[name]), value) if name in schemes else None
            for name, value in values.items()
        ]
    except Unsupported as error:
        raise ConfigurationError(
            f"auth=: a security scheme of the document cannot be read: {error}"
        ) from None
    if None in parts:
        missing = next(name for name in values if name not in schemes)
        raise ConfigurationError(
            f"auth=: the document has no security scheme {missing!r} (available: {', '.join(sorted(schemes)) or 'none'})"
        )
    found = [part() for part in parts if part is not None]
    return lambda: Credentials(
        headers={name: text for each in found for name, text in each.headers.items()},
        query={name: text for each in found for name, text in each.query.items()},
    )


def _scheme_credentials(
    name: str, scheme: Mapping[str, Any], value: str | Basic
) -> Callable[[], Credentials]:
    kind, place = scheme.get("type"), scheme.get("in")
    if isinstance(value, Basic):
        return value
    if kind == "apiKey":
        key = str(scheme.get("name"))
        cookie = attrs.evolve(Credentials(), headers={"Cookie": f"{key}={value}"})
        return {"header": APIKey(value, header=key), "query": APIKey(value, query=key)}.get(
            str(place), lambda: cookie
        )
    if kind == "http" and str(scheme.get("scheme")).lower() == "basic":
        raise ConfigurationError(f"auth=: the scheme {name!r} requires Basic(user, password)")
    return Bearer(value)
