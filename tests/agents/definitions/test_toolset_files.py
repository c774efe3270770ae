"""Toolset files of an agent folder: tools/*.py, openapi/* and mcp_config.json, valid and invalid."""

import json
import sys
from pathlib import Path

import pytest

from actgent import AgentBuilder, ConfigurationError, ScriptedLLM, ToolCall
from actgent.definitions.agent_folder import read_folder
from actgent.errors import InvalidFolder

SERVER = Path(__file__).parents[2] / "toolsets" / "mcp" / "faulty_server.py"
TOOL = "from actgent import tool\n\n@tool(thread=False)\ndef {name}() -> str:\n    return '{name}'\n"
API = """\
openapi: 3.1.0
info: {title: Shop, version: "1"}
servers: [{url: "https://shop.example"}]
paths:
  /items/{id}:
    get:
      operationId: getItem
      parameters: [{name: id, in: path, required: true, schema: {type: integer}}]
"""
CONFIG = {"mcpServers": {"faulty": {"command": sys.executable, "args": [str(SERVER)], "connect_timeout": 20}}}


@pytest.fixture
def write(tmp_path):
    """Return a function that writes an agent folder from texts by path."""

    def write_folder(**files):
        for name, text in {"brain_md": "---\nname: x\n---\n", **files}.items():
            path = tmp_path / name.replace("__", "/").replace("_md", ".md").replace("_py", ".py")
            path = path.with_name(path.name.replace("_yaml", ".yaml").replace("_json", ".json"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return write_folder


def wrong(folder, read=read_folder):
    """Return (file, line, reason) of each reported problem."""
    with pytest.raises(InvalidFolder) as caught:
        read(folder)
    return [(Path(p.file).relative_to(folder).as_posix(), p.line, p.reason) for p in caught.value.problems]


async def test_agent_has_the_tools_of_all_toolset_files(write):
    """An agent has the tools of several code files, of an API and of a server that it starts."""
    folder = write(
        tools_py=TOOL.format(name="one"),
        tools__more_py=TOOL.format(name="two"),
        tools___hidden_py="raise SystemExit",
        tools__notes_md="no code",
        openapi__shop_yaml=API,
        mcp_config_json=json.dumps(CONFIG),
    )
    assert (folder / "mcp_config.json").is_file()
    llm = ScriptedLLM([[ToolCall("two", {}), ToolCall("echo", {"text": "hi"})], "done"])
    async with AgentBuilder.from_folder(folder).llm(llm).build() as agent:
        assert (await agent.run("go")).text == "done"
    names = [spec.name for spec in llm.chats[0].tools]
    assert names[:2] == ["one", "two"]
    assert {"getItem", "echo"} <= set(names)
    assert [part for message in llm.chats[1].messages for part in [str(message)] if "echo: hi" in part]


async def test_names_in_brain_choose_among_the_code(write):
    """`tools:` selects among the tools of all code files. A toolset in a code file is always included."""
    more = (
        TOOL.format(name="two")
        + "\nfrom actgent import StaticToolset\nmaths = StaticToolset('maths', [two])\n"
    )
    folder = write(
        brain_md="---\nname: x\ntools: [one]\n---\n", tools_py=TOOL.format(name="one"), tools__more_py=more
    )
    agent = AgentBuilder.from_folder(folder).llm(ScriptedLLM(["a"])).build()
    assert ([tool.name for tool in agent.tools], [t.name for t in agent.toolsets]) == (
        ["one", "read_result"],
        ["maths"],
    )


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tools__more_py": "x = 1\ndef broken(:\n"}, ("tools/more.py", 2, "syntax error")),
        (
            {"tools_py": TOOL.format(name="one"), "tools__more_py": "\n" + TOOL.format(name="one")},
            ("tools/more.py", 5, "tools.py also defines a tool 'one'"),
        ),
        ({"openapi__a_yaml": "openapi: 3.1.0\npaths: [\n"}, ("openapi/a.yaml", 3, "invalid YAML")),
        ({"openapi__a_json": '{\n  "openapi":\n}'}, ("openapi/a.json", 3, "invalid JSON")),
        ({"openapi__a_yaml": "- 1\n"}, ("openapi/a.yaml", 1, "None is not supported")),
        ({"openapi__a_yaml": "swagger: '2.0'\n"}, ("openapi/a.yaml", 1, "2.0 is not supported")),
        ({"openapi__a_yaml": API, "openapi__a_json": "{}"}, ("openapi/a.json", 1, "None is not supported")),
        ({"mcp_config_json": '{\n"mcpServers": {\n'}, ("mcp_config.json", 3, "invalid JSON")),
        ({"mcp_config_json": "[]"}, ("mcp_config.json", 1, "it is not a JSON object")),
        ({"mcp_config_json": '{"servers": {}}'}, ("mcp_config.json", 1, "expected")),
        (
            {"mcp_config_json": '{"mcpServers": {\n"a": {"command": "x"},\n"b": {"comand": "x"}}}'},
            ("mcp_config.json", 3, "unknown key 'comand'"),
        ),
        (
            {"openapi__a_yaml": API, "mcp_config_json": '{"mcpServers": {\n"a": {"command": "x"}}}'},
            ("mcp_config.json", 2, "openapi/a.yaml is also named 'a'"),
        ),
    ],
)
def test_invalid_toolset_files_are_rejected(write, files, expected):
    """The problem has file and line, and no code is run."""
    file, line, text = expected
    assert [(f, n) for f, n, reason in wrong(write(**files)) if text in reason] == [(file, line)]


def test_failing_code_files_are_all_reported(write):
    """Building the agent reports all code files that fail at import."""
    folder = write(tools_py="import os\nos.environ['NO_SUCH_ONE']\n", tools__more_py="1 / 0\n")
    read_folder(folder)
    found = wrong(folder, AgentBuilder.from_folder)
    assert [(file, line) for file, line, _ in found] == [("tools.py", 2), ("tools/more.py", 1)]


def test_unset_variable_fails_only_the_build(write, monkeypatch):
    """Reading a folder needs no secrets. Building the agent fails if a variable is unset."""
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    server = {"url": "https://mcp.example", "headers": {"Authorization": "Bearer ${NO_SUCH_TOKEN}"}}
    folder = write(mcp_config_json=json.dumps({"mcpServers": {"web": server}}))
    assert list(read_folder(folder).servers) == ["web"]
    with pytest.raises(ConfigurationError, match="NO_SUCH_TOKEN is not set"):
        AgentBuilder.from_folder(folder)


def test_lock_file_of_the_folder_is_used(write):
    """`mcp.lock.json` in the folder is the lock file of its servers."""
    folder = write(mcp_config_json=json.dumps(CONFIG))
    (folder / "mcp.lock.json").write_text('{"version": 1, "servers": {}}', encoding="utf-8")
    agent = AgentBuilder.from_folder(folder).llm(ScriptedLLM(["a"])).build()
    assert agent.toolsets[0].lock == folder / "mcp.lock.json"


def test_links_are_not_followed(write, tmp_path_factory):
    """A folder or a configuration file that is a link is rejected."""
    other = tmp_path_factory.mktemp("other")
    (other / "a.py").write_text(TOOL.format(name="one"), encoding="utf-8")
    (other / "c.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    folder = write()
    (folder / "tools").symlink_to(other)
    (folder / "mcp_config.json").symlink_to(other / "c.json")
    assert {file for file, _, reason in wrong(folder) if "link" in reason} == {"tools", "mcp_config.json"}
