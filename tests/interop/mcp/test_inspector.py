"""The command line of the MCP inspector from npm, against `/mcp` of a gateway and against `actgent mcp serve`."""

import json
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, tool
from tests.interop.node.npm import MODULES, find_node
from tests.web.conftest import open_served

pytest.importorskip("mcp", reason="pip install 'actgent[mcp]'")

from actgent.interop.mcp import MCPCatalog, MCPProtocol, mcp_prompt, mcp_resource

INSPECTOR = MODULES / ".bin" / "mcp-inspector"
ACTGENT = str(Path(sys.executable).with_name("actgent"))
AGENTS = """
from actgent import BareAgent, ScriptedLLM, tool

@tool(effect="pure")
def add(a: int, b: int) -> int:
    \"\"\"Add two numbers.\"\"\"
    return a + b

clerk = BareAgent("clerk", llm=ScriptedLLM(lambda chat: "good day"), tools=[add])
"""
pytestmark = pytest.mark.skipif(
    not INSPECTOR.exists(), reason="the inspector from npm is not installed: `make test` does that"
)


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@mcp_prompt
def review(language: str) -> str:
    """Review code."""
    return f"Review my {language} code."


@mcp_resource("docs://{page}", media_type="text/markdown")
def page_of(page: str) -> str:
    """Return a page."""
    return f"# {page}"


CATALOG = MCPCatalog(tools=[add], prompts=[review], resources=[page_of])


async def inspect(home, *arguments):
    """Run the inspector, and return the exit code and its output."""
    if (node := find_node()) is None:
        pytest.skip("the inspector needs Node 22 or later")
    with trio.fail_after(120):
        done = await trio.run_process(
            [node, str(INSPECTOR), "--cli", *arguments, "--connect-timeout", "90000"],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=home,
            env={**os.environ, "HOME": str(home)},
        )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@asynccontextmanager
async def inspecting(home):
    """Serve a gateway. Yield a function that runs the inspector against it with the token of an owner."""
    agent = BareAgent("clerk", llm=ScriptedLLM(lambda _: "good day"))
    async with open_served(agents=[agent], protocols=[MCPProtocol(catalog=CATALOG)]) as served:

        async def run(token, *arguments):
            header = f"Authorization: Bearer {served.tokens[token]}"
            url = f"{served.gateway.url}/mcp"
            return await inspect(home, url, "--transport", "http", "--header", header, *arguments)

        yield run


async def test_inspector_calls_methods_over_http(tmp_path):
    calls = [
        ("tools/list", "--strict"),
        ("tools/call", "--tool-name", "add", "--tool-arg", "a=1", "b=2"),
        ("tools/call", "--tool-name", "clerk", "--tool-arg", "message=hello"),
        ("prompts/list",),
        ("prompts/get", "--prompt-name", "review", "--prompt-args", "language=perl"),
        ("resources/templates/list",),
        ("resources/read", "--uri", "docs://start"),
    ]
    found = []
    async with inspecting(tmp_path) as run:
        for method, *options in calls:
            code, output, errors = await run("ada", "--method", method, *options)
            assert code == 0, errors
            found.append(json.loads(output))
        assert (await run("reader", "--method", "tools/list"))[0] != 0
    tools, added, answered, prompts, prompt, templates, page = found
    assert [each["name"] for each in tools["tools"]] == ["clerk", "add"]
    assert added["content"] == [{"type": "text", "text": "3"}]
    assert answered["content"] == [{"type": "text", "text": "good day"}]
    assert [each["name"] for each in prompts["prompts"]] == ["review"]
    assert prompt["messages"][0]["content"]["text"] == "Review my perl code."
    assert templates["resourceTemplates"][0]["uriTemplate"] == "docs://{page}"
    assert page["contents"] == [{"uri": "docs://start", "mimeType": "text/markdown", "text": "# start"}]


async def test_inspector_calls_tools_of_the_command(tmp_path):
    (tmp_path / "agents.py").write_text(AGENTS, encoding="utf-8")
    command = [ACTGENT, "mcp", "serve", "agents.py", "--tools"]
    call = ["--method", "tools/call", "--tool-name", "add", "--tool-arg", "a=1", "b=2"]
    code, output, errors = await inspect(tmp_path, *command, *call)
    assert code == 0, errors
    assert json.loads(output)["content"] == [{"type": "text", "text": "3"}]
