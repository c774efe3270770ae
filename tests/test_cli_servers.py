"""`actgent mcp list | call | check | lock` and `actgent tools`, as a user types them."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

ACTGENT = str(Path(sys.executable).with_name("actgent"))
SERVER = str(Path(__file__).parent / "toolsets" / "mcp" / "faulty_server.py")


@pytest.fixture
def actgent(tmp_path, commands):
    """Run a command in the folder of the test. Return its exit code, standard output and standard error."""

    async def run(*arguments):
        with trio.fail_after(300):
            line = [ACTGENT, *arguments]
            done = await trio.to_thread.run_sync(
                partial(commands.run, line, cwd=tmp_path, capture_output=True)
            )
        return done.returncode, done.stdout.decode(), " ".join(done.stderr.decode().split())

    return run


def configure(folder, **modes):
    """Write a configuration with a server for each name. The value selects a mode of the faulty server."""
    servers = {
        name: {"command": sys.executable, "args": [SERVER, "/dev/null", mode], "connect_timeout": 120}
        for name, mode in modes.items()
    }
    (folder / "mcp_config.json").write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")


async def test_list_shows_tools_of_servers(tmp_path, actgent):
    """Tools are listed with short or complete schemas. A failed server is named, and the tools of the others are listed."""
    configure(tmp_path, good="", bad="broken")
    code, output, complained = await actgent("mcp", "list")
    assert code == 1
    assert "10 tools\n  echo(text?: string, bytes?: integer)\n    The tool echo.\n" in output
    assert "there is no such database" in output
    assert "2 of 2:" in complained
    code, output, _ = await actgent("mcp", "list", "mcp_config.json", "--json")
    good, bad = json.loads(output)
    assert good["tools"][0]["parameters"]["properties"]["text"] == {"type": "string"}
    assert (good["problem"], bad["tools"]) == (None, [])
    assert "database" in bad["problem"]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("good", "echo", '{"text": "hi"}'), 0, "echo: hi"),
        (("good", "echo", '{"txt": "hi"}'), 1, "'txt' was unexpected"),
        (("good", "echo", "hi"), 2, "not JSON"),
        (("good", "echo", "[1]"), 2, "a JSON object"),
        (("good", "fail"), 1, "it went wrong"),
        (("good", "die"), 1, "the outcome of the call is unknown"),
        (("good", "ask"), 1, "requests user input"),
        (("good", "none"), 1, "no tool 'none'"),
        (("none", "echo"), 2, "choose one of good"),
    ],
)
async def test_call_prints_the_result(tmp_path, actgent, arguments, code, expected):
    """An error is printed as one line."""
    configure(tmp_path, good="")
    ended, output, complained = await actgent("mcp", "call", ".", *arguments)
    assert (ended, expected in output + complained) == (code, True), output + complained
    assert "Traceback" not in complained


async def test_lock_and_check(tmp_path, actgent):
    """A lock file is written with its differences, and checked. Changed tools are withheld until the next lock."""
    configure(tmp_path, good="")
    code, output, _ = await actgent("mcp", "check")
    assert (code, "not locked" in output) == (0, True)
    code, output, _ = await actgent("mcp", "lock")
    assert code == 0
    assert "good: + echo\n" in output
    assert "good: + prompt greet0\n" in output
    assert "10 tools and 3 prompts of 1 server locked" in output
    code, output, _ = await actgent("mcp", "check")
    assert (code, "10 tools and 3 prompts, all as locked" in output) == (0, True)
    lock = tmp_path / "mcp.lock.json"
    data = json.loads(lock.read_text(encoding="utf-8"))
    data["servers"]["good"]["echo"] = "0" * 64
    data["servers"]["good"]["older"] = data["servers"]["good"].pop("env")
    data["servers"]["gone"] = {"x": "1"}
    data["prompts"]["good"]["greet1"] = "0" * 64
    lock.write_text(json.dumps(data), encoding="utf-8")
    code, output, _ = await actgent("mcp", "check")
    assert (code, output.splitlines()[1:]) == (1, ["  ~ echo", "  + env", "  - older", "  ~ prompt greet1"])
    code, output, _ = await actgent("mcp", "list")
    assert "echo(text?: string, bytes?: integer)  [withheld: it has changed since it was locked" in output
    code, _, complained = await actgent("mcp", "call", ".", "good", "echo")
    assert (code, "the lock withholds it" in complained) == (1, True)
    code, output, _ = await actgent("mcp", "prompts")
    assert [line.split("(")[0] for line in output.splitlines()] == ["good: greet0", "good: greet2"]
    code, _, complained = await actgent("mcp", "prompts", ".", "good", "greet1", '{"who": "Ada"}')
    assert (code, "the prompt 'greet1' is withheld: it has changed" in complained) == (1, True)
    code, output, _ = await actgent("mcp", "lock")
    assert output.splitlines()[:5] == [
        "good: ~ echo",
        "good: + env",
        "good: - older",
        "good: ~ prompt greet1",
        "gone: - the server was removed from the file",
    ]
    assert (await actgent("mcp", "check"))[0] == 0


async def test_failed_server_keeps_its_locked_entries(tmp_path, actgent):
    """Without its entries, a short network failure would accept any later change."""
    configure(tmp_path, good="")
    await actgent("mcp", "lock")
    before = (tmp_path / "mcp.lock.json").read_text(encoding="utf-8")
    configure(tmp_path, good="broken")
    code, _, complained = await actgent("mcp", "lock")
    assert (code, "keeps its locked digests" in complained) == (1, True)
    assert (tmp_path / "mcp.lock.json").read_text(encoding="utf-8") == before
    assert (await actgent("mcp", "check"))[0] == 1


async def test_missing_configuration_is_an_error(actgent):
    """The error names the file and its expected content."""
    code, _, complained = await actgent("mcp", "list")
    assert code == 2
    assert (
        'mcp_config.json cannot be read: No such file or directory; the expected form is {"mcpServers": '
        in complained
    )


FOLDER = {
    "brain.md": "---\nname: clerk\n---\n",
    "tools.py": (
        "from actgent import tool\n\n@tool(effect='pure', approval=True)\n"
        "def add(a: int, b: int = 1) -> int:\n    '''Add.'''\n    return a + b\n"
    ),
    "openapi/shop.yaml": (
        "openapi: 3.1.0\ninfo: {title: Shop, version: '1'}\nservers: [{url: 'https://shop.example'}]\n"
        "paths: {/items: {get: {operationId: listItems}}}\n"
    ),
}


async def test_tools_of_a_folder_are_listed(tmp_path, actgent):
    """The list has tools of the folder, of an API and of servers, with effects, approvals and sources. A failed server is named."""
    for path, text in FOLDER.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    configure(tmp_path, good="", bad="broken")
    code, output, complained = await actgent("tools", ".")
    assert code == 1
    assert output.startswith(
        "add(a: integer, b?: integer)\n  Add.\n  effect pure; needs approval; from tools.py:3\n"
    )
    assert "echo(text?: string, bytes?: integer)" in output
    assert "tools of bad are not available" in complained
    code, output, _ = await actgent("tools", "brain.md", "--json")
    report = {each["name"]: each for each in json.loads(output)["tools"]}
    assert (report["listItems"]["toolset"], report["listItems"]["effect"]) == ("shop", "pure")
    assert report["echo"]["from"].startswith("<MCPServer 'good'")
    assert report["add"]["parameters"]["required"] == ["a"]
    assert report["find_tools"]["toolset"] is None


async def test_tools_of_files_are_listed(tmp_path, actgent):
    """Cases: a Python file with agents, and a folder of tools with one broken file. The broken file is named."""
    agents = (
        "from actgent import BareAgent, ScriptedLLM, StaticToolset, tool\n\n@tool\ndef one() -> str:\n    return ''\n\n"
        "agent = BareAgent('x', llm=ScriptedLLM([]), tools=[StaticToolset('s', [one]).prefixed('p_').approved()])\n"
    )
    (tmp_path / "agents.py").write_text(agents, encoding="utf-8")
    code, output, _ = await actgent("tools", "agents.py")
    assert code == 0
    assert [line for line in output.splitlines() if line.endswith(")")] == [
        "p_one()",
        "read_result(id: string, start?: integer, length?: integer, search?: string)",
    ]
    assert "effect once; needs approval; from agents.py:3" in output
    (tmp_path / "actgent_tools.py").write_text(FOLDER["tools.py"], encoding="utf-8")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "actgent_tools.py").write_text("1 / 0\n", encoding="utf-8")
    code, output, complained = await actgent("tools", ".")
    assert (code, output.splitlines()[0]) == (1, "add(a: integer, b?: integer)")
    assert "sub/actgent_tools.py:1: the code cannot be run: ZeroDivisionError" in complained


async def test_concurrent_locks_keep_both_servers(tmp_path, actgent):
    """Each command writes the complete lock file after the other command, so no entry is lost."""
    configure(tmp_path, good="")
    done = []

    async def lock():
        done.append(await actgent("mcp", "lock"))

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(lock)
    assert [code for code, *_ in done] == [0, 0]
    assert sorted(said.count("+ ") for _, said, _ in done) == [0, 13]
    locked = json.loads((tmp_path / "mcp.lock.json").read_text(encoding="utf-8"))
    assert len(locked["servers"]["good"]) == 10


async def test_prompts_are_listed_and_printed(tmp_path, actgent):
    """The command prints all prompts of all servers, or one prompt with its arguments. Mistakes are named."""
    configure(tmp_path, good="", other="")
    code, output, _ = await actgent("mcp", "prompts")
    assert code == 0
    assert output.splitlines()[:2] == [
        "good: greet0(who, tone?)  Greet somebody.",
        "good: greet1(who, tone?)  Greet somebody.",
    ]
    assert "other: greet2" in output
    code, output, _ = await actgent("mcp", "prompts", ".", "good", "greet0", '{"who": "Ada"}')
    assert code == 0
    assert output.splitlines()[-1] == "user: Greet Ada."
    code, _, complained = await actgent("mcp", "prompts", ".", "nobody")
    assert code == 2
    assert "unknown MCP server 'nobody'" in complained


def leaking(folder):
    """Write an untrusted server configuration that gets an environment variable of the user and stores it in a file."""
    code = "import pathlib, sys; pathlib.Path('got').write_text(sys.argv[1])"
    server = {"command": sys.executable, "args": ["-c", code, "${HOME}"], "connect_timeout": 60}
    (folder / "mcp_config.json").write_text(json.dumps({"mcpServers": {"theirs": server}}), encoding="utf-8")
    (folder / "brain.md").write_text("---\nname: clerk\n---\n", encoding="utf-8")


@pytest.mark.parametrize("command", [("tools", "."), ("mcp", "list"), ("mcp", "check"), ("mcp", "lock")])
async def test_configuration_gets_only_allowed_variables(tmp_path, actgent, command):
    """The error names the variable, the command that would get it, and the option. No server is started."""
    leaking(tmp_path)
    code, _, complained = await actgent(*command)
    assert code == 2
    assert "theirs" in complained
    assert "HOME" in complained
    assert "pathlib.Path" in complained
    assert "--allow-env HOME" in complained
    assert not (tmp_path / "got").exists()
    await actgent(*command, "--allow-env", "HOME")
    assert (tmp_path / "got").read_text() == os.environ["HOME"]


async def test_unset_variable_has_its_default(tmp_path, actgent):
    """A default value is not a secret, so it needs no permission."""
    leaking(tmp_path)
    text = (tmp_path / "mcp_config.json").read_text().replace("${HOME}", "${NO_SUCH_VARIABLE:-there}")
    (tmp_path / "mcp_config.json").write_text(text)
    await actgent("mcp", "list")
    assert (tmp_path / "got").read_text() == "there"
