"""The page of MCP servers, and its endpoint."""

import sys

import pytest
import trio

from actgent import BareAgent, MCPServer, ScriptedLLM, ToolCall, connect

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

IMAGE = "<img src=x onerror=document.title='pwned'>"
SECRETS = ("secret-user", "secret-word", "secret-path", "secret-query", "secret-header", "secret-env", "--key=secret-argument")  # fmt: skip
SERVER = f"""
import json, sys
tool = {{"name": "look", "description": {IMAGE!r}, "inputSchema": {{"type": "object", "title": {IMAGE!r}}}}}
results = {{
    "initialize": {{"protocolVersion": "2025-06-18", "capabilities": {{"tools": {{}}}}, "serverInfo": {{"name": {IMAGE!r}, "version": "7"}}}},
    "tools/list": {{"tools": [tool]}},
}}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        found = results.get(asked["method"])
        said = {{"result": found}} if found else {{"error": {{"code": -32601, "message": "unknown"}}}}
        print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], **said}}), flush=True)
"""
DIES = "import os, sys; sys.exit(' '.join(['no', os.environ['TOKEN'], *sys.argv[1:]]))"
TEXT = "document.querySelector('main').innerText"
CUT = """[...document.querySelectorAll('main, main .scroll')].filter(each => each.scrollWidth > each.clientWidth + 1)
  .map(each => `${each.className} ${each.scrollWidth} > ${each.clientWidth}`).join()"""


def make_agents():
    """Return an agent with a connected server, and an agent with this server and two servers that cannot be connected."""
    python = sys.executable
    good = MCPServer(command=python, args=["-c", SERVER], name="good")
    dies = MCPServer(
        command=python, args=["-c", DIES, "--key=secret-argument"], env={"TOKEN": "secret-env"}, name="dies"
    )
    away = MCPServer(
        url="http://secret-user:secret-word@127.0.0.1:9/secret-path?key=secret-query",
        headers={"Authorization": "Bearer secret-header"},
        name="away",
    )
    llm = ScriptedLLM(["Good day."], repeat=True)
    return [
        BareAgent("clerk", llm=llm, tools=[good]),
        BareAgent("helper", llm=llm, tools=[good.prefixed("x_"), dies, away]),
    ]


async def wait_settled(root):
    """Return the listed toolsets by name, after each has connected or failed."""
    with trio.fail_after(60):
        while True:
            items = (await root.get("/v1/toolsets")).json()["items"]
            found = {each["name"]: each for each in items}
            if {each["state"] for each in items} == {"connected", "lost"} and found["good"]["tools"]:
                return found
            await trio.sleep(0.1)


async def test_toolsets_are_listed_without_secrets(serving):
    """The list has agents, revision, tools and errors. Secrets of URLs, headers, arguments and the environment are hidden."""
    async with serving(agents=make_agents()) as served, served.client("root") as root:
        found = await wait_settled(root)
        good, dies, away = (found[name] for name in ("good", "dies", "away"))
        assert (good["agents"], good["protocol"], good["server"]) == (
            ["clerk", "helper"],
            "2025-06-18",
            f"{IMAGE} 7",
        )
        assert [each["name"] for each in good["tools"]] == ["look"]
        assert (good["state"], good["reconnects"], good["error"], good["failed_at"]) == (
            "connected",
            0,
            "",
            None,
        )
        assert (dies["error"], "no [hidden] [hidden]" in dies["error_text"]) == ("ServerEnded", True)
        assert (away["address"], away["state"], away["tools"]) == ("http://127.0.0.1:9", "lost", [])
        text = (await root.get("/v1/toolsets")).text
        assert [each for each in SECRETS if each in text] == []
        async with connect(served.gateway.url, token=served.tokens["root"]) as client:
            read = {each.name: each for each in await client.toolset_status()}
        known = {each.name: each for each in served.runtime.toolset_status()}
        assert read["good"] == known["good"]
        assert read.keys() == known.keys()
        async with served.client() as ada:
            assert (await ada.get("/v1/toolsets")).status_code == 403


async def test_page_shows_servers_and_tools(serving, screen, axe):
    """The page shows texts of the server literally. The address has the agent and the open toolset. The page has no finding of axe."""
    async with serving(agents=make_agents()) as served, served.client("root") as root:
        await wait_settled(root)
        await screen.open(f"{served.gateway.url}/#key={served.tokens['root']}")
        await screen.until("document.querySelector('nav').innerText.includes('Tool servers')")
        await screen.press("g", "o")
        await screen.until("document.querySelectorAll('main section').length === 3")
        await screen.run("document.querySelector('main section[aria-label=good] summary').click()")
        await screen.until("location.hash === '#/toolsets?name=good'")
        await screen.until("document.querySelector('main section[aria-label=good] li')")
        shown = await screen.run(TEXT)
        for expected in (IMAGE, "MCP 2025-06-18", "clerk, helper", "ServerEnded", "[hidden]"):
            assert expected in shown
        assert [each for each in SECRETS if each in shown] == []
        assert await screen.run("document.querySelectorAll('main img, main script').length") == 0
        assert "pwned" not in await screen.run("document.title")
        assert await axe() == []
        await screen.tab.look(360, "light")
        assert await screen.run(CUT) == ""
        await screen.tab.look(1280, "light")
        await screen.go("#/toolsets?agent=clerk")
        await screen.until("document.querySelectorAll('main section').length === 1")


async def test_reconnection_is_counted(serving):
    """After the process of a server was killed, the toolset is connected again, and the last error is kept."""
    script = "import sys; " + SERVER.replace(
        "for line in sys.stdin:", "for line in sys.stdin:\n    if 'tools/call' in line: sys.exit(3)"
    )
    server = MCPServer(command=sys.executable, args=["-c", script], name="good")
    llm = ScriptedLLM([ToolCall("look", {}), "It is lost."])
    async with serving(agents=[BareAgent("clerk", llm=llm, tools=[server])]) as served:
        with trio.fail_after(60):
            while served.runtime.toolset_status()[0].state != "connected":  # noqa: ASYNC110 - no event signals this state
                await trio.sleep(0.05)
            await served.runtime.agents.agent("clerk").run("look")
            while served.runtime.toolset_status()[0].reconnects == 0:  # noqa: ASYNC110 - as above
                await trio.sleep(0.05)
        (status,) = served.runtime.toolset_status()
        assert (status.state, status.reconnects, status.error) == ("connected", 1, "ServerEnded")
        assert status.failed_at is not None
