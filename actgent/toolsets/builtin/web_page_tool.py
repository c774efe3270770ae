"""Tool that fetches a web page as text."""

import html
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
import trio

from actgent.errors import ToolError
from actgent.errors.text_escaping import counted
from actgent.support.user_code_calls import explained_text
from actgent.tools.tool_interface import Effect, Tool, ToolContext
from actgent.toolsets.http.bounded_http_requests import decode_text, read_decoded
from actgent.toolsets.http.internal_address_blocking import Guard

MAX_BYTES = 2_000_000
"""Maximum size of a page in bytes; the rest is ignored."""
MAX_REDIRECTS = 5
"""Maximum number of redirects to follow."""
_THREAD_THRESHOLD_BYTES = 100_000
"""Page size above which a worker thread converts the page: a hostile page of 2 MB takes 1 to 2 s."""
_WORD_OR_END = re.compile(r"[^\s\x00]+|\x00")
_SILENT = ("script", "style", "noscript", "template", "svg", "iframe", "textarea", "title")
_BLOCKS = frozenset(
    "address article aside blockquote br dd div dl dt fieldset figure footer form h1 h2 h3 h4 h5 h6 header hr li main nav "
    "ol p pre section table td th tr ul".split()
)


def page_tool(name: str = "fetch_page", *, allow: Sequence[str] = (), timeout: float = 30.0) -> Tool:
    """Make a tool that fetches a web page as text.

    Args:
        name: Name by which the model calls the tool.
        allow: Hosts and networks that are reachable although they are not public; see `Guard`.
        timeout: Time limit of a call in seconds.
    """
    return PageTool(name, Guard(allow), timeout)


class PageTool(Tool):
    """Tool that fetches a page through the guard: public addresses only, at most 2 MB and five redirects."""

    description = "Fetch a page of the web, and read it as text."
    effect: Effect = "pure"
    sinks = ("url",)  # an address can carry data out
    outside = True
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"url": {"type": "string", "description": "The address, with https:// or http://."}},
        "required": ["url"],
        "additionalProperties": False,
    }

    def __init__(self, name: str, guard: Guard, timeout: float) -> None:
        self.name = name
        self.timeout = timeout
        self._guard = guard

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        url = arguments["url"]
        if not url.lower().startswith(("http://", "https://")):
            raise ToolError("url must begin with https:// or http://")
        client = self._guard.client(max_redirects=MAX_REDIRECTS, timeout=self.timeout)
        try:
            async with (
                client,
                client.stream(
                    "GET", url, headers={"Accept": "text/html,text/*"}, follow_redirects=True
                ) as response,
            ):
                if response.status_code >= 400:  # noqa: PLR2004 - RFC 9110: errors start at 400
                    raise ToolError(f"the server answered with status {response.status_code}")
                data, _ = await read_decoded(response, MAX_BYTES)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ToolError(f"the page cannot be fetched: {explained_text(error)}") from error
        if len(data) < _THREAD_THRESHOLD_BYTES:
            return _extract_text(data, response)
        return await trio.to_thread.run_sync(_extract_text, data, response)


def _extract_text(data: bytes, response: httpx2.Response) -> str:
    kind = response.headers.get("content-type", "text/html").split(";")[0].strip().lower()
    if not kind.startswith("text/") and not kind.endswith(("xml", "json")):
        return f"[{kind}, {counted(len(data), 'byte')}]"
    text = decode_text(data, response.charset_encoding)
    return page_text(text) if "html" in kind else text


def page_text(page: str) -> str:
    """Return the visible text of an HTML page, one line per block. Takes linear time, also for broken HTML."""
    written = io.StringIO()  # a list of a million short strings would take 100 MB
    lower = page.lower()
    place = 0
    while (begin := page.find("<", place)) >= 0:
        written.write(page[place:begin])
        place = _skip_markup(page, lower, begin, written)
        if place < 0:
            break
    else:
        written.write(page[place:])
    return _lines(html.unescape(written.getvalue()))


def _lines(text: str) -> str:
    """Convert text with a NUL character between blocks to one line per block. Spaces are merged and empty blocks removed."""
    lines = io.StringIO()
    between = ""
    for found in _WORD_OR_END.finditer(text):
        word = found[0]
        if word == "\x00":
            between = "\n" if lines.tell() else ""
        else:
            lines.write(f"{between}{word}")
            between = " "
    return lines.getvalue()


def _skip_markup(page: str, lower: str, begin: int, written: io.StringIO) -> int:
    """Return the index after the markup at `begin`: a comment, an element without visible text, or a tag.

    Return -1 if the markup is not closed.

    Args:
        page: The HTML page.
        lower: The page in lower case.
        begin: Index of the `<` of the markup.
        written: Receives the separator of blocks if the tag begins or ends a block.
    """
    if page.startswith("<!--", begin):
        end = page.find("-->", begin + 4)
        return end + 3 if end >= 0 else -1
    if not (page[begin + 1 : begin + 2].isalpha() or page[begin + 1 : begin + 2] in ("/", "!", "?")):
        written.write("<")
        return begin + 1
    end = page.find(">", begin)
    name = "".join(
        lower[begin + 1 : begin + 20].lstrip("/").replace(">", " ").replace("/", " ").split(" ")[:1]
    )
    if name in _BLOCKS:
        written.write("\x00")
    if end >= 0 and name in _SILENT and page[begin + 1] != "/":
        closing = lower.find(f"</{name}", end)
        return lower.find(">", closing) + 1 or -1 if closing >= 0 else -1
    return end + 1 if end >= 0 else -1
