"""`OpenAPI`: the operations of an API that has an OpenAPI document, as a toolset."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import trio

from actgent.control.arguments import at_least_one
from actgent.errors import AddressRefused, ConfigurationError
from actgent.errors.printable import counted, shown
from actgent.support.logs import logger_of
from actgent.tools.base import Tool
from actgent.tools.generators import allowed_by, check_rule_function
from actgent.tools.options import check_options
from actgent.tools.registry import fit_name
from actgent.toolsets.http import (
    APIKey,
    APIRequest,
    Auth,
    Basic,
    Bearer,
    Connections,
    Credentials,
    Guard,
    check_auth,
    is_http_url,
    origin_of,
)
from actgent.toolsets.toolset import CONNECT_TIMEOUT, Publish, Toolset, check_name

from .document import APIDocument, Operation, Unsupported, is_server, read_document, read_file
from .operation import OperationTool

LARGEST = 20_000_000
"""Bytes of a document that is fetched."""
SAID = 20
"""How many operations that are left out the log names."""
_log = logger_of(__name__)


class OpenAPI(Toolset):
    """The operations of an API as tools, by its OpenAPI document (3.0 or 3.1).

        OpenAPI("api.yaml", tags=["issues"], auth=Bearer(token))

    An operation that cannot be a tool is left out; `skipped` says why.

    Args:
        document: The document as a dict, the path of its file (JSON or YAML), or the URL that it is fetched from when
            the toolset is opened.
        name: The toolset's name; by default made from the document's title, or from its place.
        server: The API's address; by default the first that the document names.
        tags: Keep operations with one of these tags.
        operations: Keep operations with one of these ids.
        keep: Keep operations of which this function says True: `lambda operation: operation.method == "get"`. It is
            called in a thread if the document is fetched.
        auth: As for `HTTPTool`; or a text or `Basic` by name of a security scheme of the document. The credentials go
            to origins that the program names: `server`, the URL of a document that is fetched, `auth_origins`, and the
            first server of a document that is a dict or a file. Requests to other servers of the document have none.
        auth_origins: Further origins that the credentials go to, such as `https://api.example.com`.
        timeout: Seconds a call may take.
        max_bytes: The longest answer.
        allow: Hosts and networks that it may reach although they are not public.
        required: True: an agent does not start without it, where the document has to be fetched.
        connect_timeout: Seconds to fetch the document, and to make tools of it in a thread.

    Raises:
        ConfigurationError: it is no OpenAPI document, names no server, or an option is wrong.
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
        connect_timeout: float = CONNECT_TIMEOUT,
    ) -> None:
        at_least_one("max_bytes", max_bytes)
        if not isinstance(auth, Mapping):
            check_auth(auth)
        self.required = required
        self.connect_timeout = connect_timeout
        self.skipped: dict[str, str] = {}
        """Why an operation is no tool, by its id."""
        if server and not is_server(server):
            raise ConfigurationError(
                f"server= is an http or https URL without user, query and fragment, not {server!r:.200}"
            )
        self._server = server.rstrip("/")
        for argument, given in (("tags", tags), ("operations", operations), ("auth_origins", auth_origins)):
            if isinstance(given, str):
                raise ConfigurationError(f"{argument}= is a list: {argument}=[{given!r}]")
        if keep is not None:
            check_rule_function("keep=", keep, takes="(operation)")
        self._auth_origins = frozenset(map(_named_origin, auth_origins))
        self._tags, self._ids, self._keep = frozenset(tags), frozenset(operations), keep
        self._auth = auth
        self._timeout, self._max_bytes = timeout, max_bytes
        self._connections = Connections(Guard(allow))
        self._url = (
            document if isinstance(document, str) and document.startswith(("http://", "https://")) else ""
        )
        if self._url and not is_http_url(self._url):
            raise ConfigurationError(f"the address of the document is no URL: {self._url!r:.200}")
        if isinstance(document, str) and "://" in document and not self._url:
            raise ConfigurationError(
                f"the address of an OpenAPI document begins with http:// or https://, not {document!r:.200}"
            )
        self._tools: tuple[Tool, ...] | None = None
        title = ""
        if not self._url:
            read = APIDocument(document if isinstance(document, Mapping) else read_file(Path(document)))
            title = read.title
            self._tools = self._made(read)
        self.may_change = bool(self._url)
        place = (
            self._url.split("/")[2]
            if self._url
            else Path(document).stem
            if isinstance(document, str | Path)
            else ""
        )
        self.name = check_name(name or fit_name(place or title or "openapi"))

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools, as far as the document is known: one that is fetched is known when the toolset is opened."""
        return self._tools or ()

    async def run(self, publish: Publish) -> None:
        async with self._connections.opened():
            if self._tools is None:
                body = await self._fetch()
                self._tools = await trio.to_thread.run_sync(self._read, body)
            publish(self._tools)
            await trio.sleep_forever()

    def _read(self, body: bytes) -> tuple[Tool, ...]:
        """Make tools of a fetched document, in a thread of trio; a cancellation ends that between two steps."""
        check = trio.from_thread.check_cancelled
        data = read_document(body, name=self._url, check=check)
        return self._made(APIDocument(data, origin=self._url), check=check)

    async def _fetch(self) -> bytes:
        request = APIRequest(method="GET", url=self._url, max_bytes=LARGEST)
        try:
            response = await self._connections.send(request)
        except AddressRefused as error:
            host = urlsplit(self._url).hostname
            raise ConfigurationError(
                f"the document at {self._url} cannot be fetched: {error}. If this is intended, write allow=[{host!r}]"
            ) from error
        if response.is_cut:
            raise ConfigurationError(f"the document at {self._url} has more than {LARGEST:,} bytes")
        return response.body

    def _made(self, document: APIDocument, *, check: Callable[[], object] = lambda: None) -> tuple[Tool, ...]:
        auth = credentials_by_scheme(document, self._auth) if isinstance(self._auth, Mapping) else self._auth
        tools: dict[str, Tool] = {}
        there = document.operations(self.skipped)
        foreign = set[str]()
        for operation in there:
            check()
            if not self._wants(operation):
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
                if tools.setdefault(tool.name, tool) is not tool:
                    self.skipped[f"{operation.method} {operation.path}"] = (
                        f"another operation is {operation.id!r}"
                    )
        self._check_wanted(there, tools)
        if foreign:
            _log.warning(
                "%s: the document names %s, which the program does not name, so no credentials go there; "
                "pass server= or auth_origins= if they may",
                shown(self._url or document.title),
                shown(", ".join(sorted(foreign)[:SAID])),
            )
        if self.skipped:
            names = ", ".join(f"{name} ({reason})" for name, reason in list(self.skipped.items())[:SAID])
            _log.warning(
                "%s: %s",
                counted(
                    len(self.skipped), "operation of an API is no tool", "operations of an API are no tools"
                ),
                shown(names),
            )
        return tuple(tools.values())

    def _origins(self, document: APIDocument) -> frozenset[str]:
        """Return the origins that the program has named, which the credentials may go to."""
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
        tool.name = fit_name(tool.name)
        check_options(tool)
        return tool

    def _wants(self, operation: Operation) -> bool:
        return (
            (not self._tags or bool(self._tags & set(operation.tags)))
            and (not self._ids or operation.id in self._ids)
            and (self._keep is None or allowed_by("keep=", self._keep(operation)))
        )

    def _check_wanted(self, there: Sequence[Operation], tools: Mapping[str, Tool]) -> None:
        """Refuse names of operations and tags that the document does not have."""
        for kind, wanted, known in (
            ("operation", self._ids, {each.id for each in there}),
            ("tag", self._tags, {tag for each in there for tag in each.tags}),
        ):
            if missing := sorted(wanted - known):
                raise ConfigurationError(
                    f"the document has no {kind} {missing[0]!r} (there are: {', '.join(sorted(known)[:SAID])})"
                )
        if not tools and self.skipped:
            reason = next(iter(self.skipped.values()))
            raise ConfigurationError(f"no operation of the document can be a tool: {reason}")


def _named_origin(url: str) -> str:
    """Return the origin of an entry of `auth_origins`; raise ConfigurationError if it is no http or https URL."""
    if not is_server(url):
        raise ConfigurationError(
            f"auth_origins= holds origins such as https://api.example.com, not {url!r:.200}"
        )
    return origin_of(url)


def credentials_by_scheme(document: APIDocument, given: Mapping[str, str | Basic]) -> Auth:
    """Turn texts by name of a security scheme into what goes into each request.

    Raises:
        ConfigurationError: the document has no such scheme, or one that a text is not enough for.
    """
    schemes = document.security_schemes()
    try:
        parts = [
            _by_scheme(name, document.resolved(schemes[name]), value) if name in schemes else None
            for name, value in given.items()
        ]
    except Unsupported as error:
        raise ConfigurationError(
            f"auth=: a security scheme of the document cannot be read: {error}"
        ) from None
    if None in parts:
        missing = next(name for name in given if name not in schemes)
        raise ConfigurationError(
            f"auth=: the document has no security scheme {missing!r} (there are: {', '.join(sorted(schemes)) or 'none'})"
        )
    found = [part() for part in parts if part is not None]
    return lambda: Credentials(
        headers={name: text for each in found for name, text in each.headers.items()},
        query={name: text for each in found for name, text in each.query.items()},
    )


def _by_scheme(name: str, scheme: Mapping[str, Any], value: str | Basic) -> Callable[[], Credentials]:
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
        raise ConfigurationError(f"auth=: the scheme {name!r} takes Basic(user, password)")
    return Bearer(value)
