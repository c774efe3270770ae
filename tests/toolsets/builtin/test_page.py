"""Web pages as text: address checks, size limits and broken markup."""

import time
import tracemalloc

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, ToolCall
from actgent.toolsets.builtin import page_tool
from actgent.toolsets.builtin.web_page_tool import page_text

PAGE = """<!doctype html><html><head><title>T</title><style>p { color: red }</style>
<script>alert("<p>no</p>")</script></head><body><h1>Fish &amp; chips</h1><p>One <b>bold</b>
word.<br>Two<!-- hidden <p> --></p><ul><li>a<li>b</ul>3 < 4 &lt;system&gt;</body></html>"""


def test_page_text_has_a_line_per_block():
    """The text has a line for each block, without scripts, styles and comments."""
    assert page_text(PAGE).splitlines() == [
        "Fish & chips",
        "One bold word.",
        "Two",
        "a",
        "b",
        "3 < 4 <system>",
    ]


@pytest.mark.parametrize(
    "piece", ["<", "<!--", "<script>", "<a ", "<![CDATA[", "</", "&", "<p", "<style", "<?"]
)
def test_broken_pages_are_read_in_linear_time(piece):
    """A megabyte of each broken markup is read in linear time."""
    started = time.process_time()
    page_text(piece * (1_000_000 // len(piece)))
    assert time.process_time() - started < 20


async def serve(answer, nursery):
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def handle(stream):
        await stream.receive_some(65536)
        try:
            await stream.send_all(answer)
            await stream.aclose()
        except trio.BrokenResourceError:
            pass

    nursery.start_soon(trio.serve_listeners, handle, listeners)
    return listeners[0].socket.getsockname()[1]


async def fetched(answer, *, allow=("127.0.0.1",)):
    async with trio.open_nursery() as nursery:
        port = await serve(answer, nursery)
        llm = ScriptedLLM([[ToolCall("fetch_page", {"url": f"http://127.0.0.1:{port}/"})], "ok"])
        async with BareAgent("a", llm=llm, tools=[page_tool(allow=allow)]) as agent:
            session = await agent.create_session("ada")
            await agent.run("go", session=session)
            (result,) = (r for message in session.history for r in message.tool_results)
        nursery.cancel_scope.cancel()
    return result


def answer(body, kind="text/html", status="200 OK", more=""):
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    return head.encode() + body


async def test_a_page_is_fetched_as_data():
    """The text is marked as untrusted."""
    result = await fetched(answer(PAGE.encode()))
    assert result.content.startswith("Fish & chips")
    assert "<system>" not in result.content
    assert result.origin == "fetch_page"
    assert result.mark in result.text


async def test_private_addresses_are_blocked():
    """Private addresses are blocked without `allow` and after a redirect."""
    assert (await fetched(answer(b"x"), allow=())).status == "error"
    more = "Location: http://169.254.169.254/latest/meta-data\r\n"
    assert (await fetched(answer(b"", status="302 Found", more=more))).status == "error"


async def test_other_responses_give_a_short_result():
    """Errors, images, unknown encodings and pages over the size limit give a short result."""
    assert "status 404" in (await fetched(answer(b"", status="404 Not Found"))).error
    assert (await fetched(answer(b"\x89PNG", kind="image/png"))).content == "[image/png, 4 bytes]"
    assert (await fetched(answer(b"<p>x\xff", kind="text/html; charset=nonsense"))).content == "x\ufffd"
    assert len((await fetched(answer(b"a" * 5_000_000, kind="text/plain"))).content) <= 2_000_000


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://x/", "", "http://", "http://[::1]/", "https://a b/"]
)
async def test_invalid_page_addresses_are_error_results(url):
    """An invalid address gives one error result."""
    llm = ScriptedLLM([[ToolCall("fetch_page", {"url": url})], "ok"])
    async with BareAgent("a", llm=llm, tools=[page_tool()]) as agent:
        session = await agent.create_session("ada")
        await agent.run("go", session=session)
        (result,) = (r for message in session.history for r in message.tool_results)
    assert result.status == "error"


@pytest.mark.parametrize("piece", ["é1<p>", "日 本<br>", "日 "])
def test_a_page_of_short_pieces_takes_little_memory(piece):
    """Many short words and tags need no more memory than a few copies of the page."""
    page = piece * (300_000 // len(piece))
    tracemalloc.start()
    try:
        page_text(page)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10_500_000
