"""`actgent check FILE`: agents without a policy, and tools with missing declarations."""

import pytest

from actgent import BareAgent, FunctionTool, Policy, ScriptedLLM, StaticToolset, Tool, tool
from actgent.cli.agent_folders import check
from actgent.cli.prompt_injection_policy_warnings import policy_warnings
from actgent.cli.terminal_io import Terminal
from actgent.toolsets.builtin import page_tool
from actgent.toolsets.mcp import MCPServer

OPTIONS = {"effect": "pure", "thread": False}


def named(name, *parameters, **options):
    """Return a tool of the program with this name and these parameters."""
    code = f"def {name}({', '.join(f'{each}: str' for each in parameters)}) -> str:\n    'Do it.'\n    return ''\n"
    defined = {"__name__": "program"}
    exec(code, defined)
    return tool(**OPTIONS | options)(defined[name])


def warnings(*tools, policy=None):
    return policy_warnings(BareAgent("clerk", llm=ScriptedLLM([]), tools=tools, policy=policy))


READ = named("read_mail", untrusted=True)
PAY = named("pay", "to", "euros", effect="once")


@pytest.mark.parametrize(
    ("tools", "source", "sink"),
    [
        ([READ, PAY], "read_mail", "pay"),
        ([READ, named("lookup", "url", untrusted=False)], "read_mail", "lookup"),
        ([page_tool("read_page")], "read_page", "read_page"),
        ([StaticToolset("desk", [READ, PAY])], "read_mail", "pay"),
        ([StaticToolset("desk", [READ, PAY]).prefixed("desk_")], "desk_read_mail", "desk_pay"),
        ([MCPServer(command="desk-server", name="desk")], "the toolset desk", "the toolset desk"),
    ],
)
def test_agent_without_a_policy_is_reported(tools, source, sink):
    """An agent that reads untrusted text and can call a tool with a sink is reported, unless it has a policy."""
    (found,) = warnings(*tools)
    assert found.startswith("agent 'clerk' has no policy: the model reads untrusted text of ")
    read, _, called = found.partition(", and can call ")
    assert source in read
    assert sink in called
    assert warnings(*tools, policy=Policy()) == []


@pytest.mark.parametrize(
    "tools",
    [
        [],
        [READ],
        [PAY],
        [READ, named("pay", "to", effect="once", sinks=())],
        [StaticToolset("desk", [PAY])],
        [READ, StaticToolset("desk", [named("sum_up", "amount", effect="once")]).with_effect("pure")],
    ],
)
def test_agent_without_source_or_sink_needs_no_policy(tools):
    assert warnings(*tools) == []


@pytest.mark.parametrize(
    "name",
    ["read_mail", "getMessages", "search_web", "list_issues", "fetch", "download_report", "get_channels"],
)
def test_undeclared_source_is_reported(name):
    """The report ends when the program declares `untrusted=`, with either value."""
    (found,) = warnings(named(name))
    assert found.startswith(f"tool {name!r} looks like it returns text of third parties")
    assert warnings(named(name, untrusted=True)) == warnings(named(name, untrusted=False)) == []


@pytest.mark.parametrize(
    ("name", "parameters", "reason"),
    [
        ("send_note", (), "its name begins with 'send'"),
        ("deleteAll", (), "its name begins with 'delete'"),
        ("remind", ("to",), "its parameter 'to' looks like the receiver"),
        ("remind", ("text", "recipients"), "its parameter 'recipients' looks like the receiver"),
    ],
)
def test_pure_tool_that_looks_active_is_reported(name, parameters, reason):
    """The report ends when the program declares an effect or the sinks of the tool."""
    (found,) = warnings(named(name, *parameters))
    assert reason in found
    assert warnings(named(name, *parameters, effect="once")) == []
    assert warnings(named(name, *parameters, sinks=parameters)) == []


@pytest.mark.parametrize("name", ["add", "send_mail", "now", "find_prime", "describe", "read_sensor"])
def test_other_names_are_not_reported(name):
    assert warnings(named(name, effect="once")) == []


def test_declarations_of_classes_are_read():
    """A class may set `outside`, also in a base class. The tools of the package have declarations."""

    class ReadMail(Tool):
        """Read the mail."""

        name, effect = "read_mail", "pure"
        parameters = {"type": "object", "properties": {}}  # noqa: RUF012

        async def execute(self, arguments, context):
            return ""

    class Trusted(ReadMail):
        outside = False

    class ReadNews(Trusted):
        name = "read_news"

    assert [each.partition(" looks")[0] for each in warnings(ReadMail())] == ["tool 'read_mail'"]
    assert warnings(Trusted()) == warnings(ReadNews()) == []


def test_tools_of_the_package_are_not_reported():
    """The package declares its tools, so their names are not checked."""
    own = FunctionTool("read_mail", "Read the mail.", page_tool, effect="pure", thread=False)
    assert warnings(own) == []


FILE = """
from actgent import BareAgent, Policy, ScriptedLLM, tool

@tool(untrusted=True, effect="pure")
def read_mail() -> str:
    "Read the mail."
    return ""

@tool
def pay(to: str) -> str:
    "Pay."
    return to

open_agent = BareAgent("open", llm=ScriptedLLM([]), tools=[read_mail, pay])
strict_agent = BareAgent("strict", llm=ScriptedLLM([]), tools=[read_mail, pay], policy=Policy())
"""


def test_file_is_checked(tmp_path, capsys):
    """Each agent and each warning has a separate line."""
    path = tmp_path / "desk.py"
    path.write_text(FILE, encoding="utf-8")
    assert check(str(path), Terminal()) == 0
    lines = capsys.readouterr().out.splitlines()
    warned = [line for line in lines if ": warning: " in line]
    assert ["agent 'open' has no policy" in line for line in warned] == [True]
    assert [line.split("'")[1] for line in lines if "is fine" in line] == ["open", "strict"]
    assert check(f"{path}:strict_agent", Terminal()) == 0
    assert "warning" not in capsys.readouterr().out


def test_folder_with_toolsets_and_no_policy_is_warned(tmp_path, capsys):
    """No server starts. `policy:` in brain.md ends the warning."""
    (tmp_path / "mcp_config.json").write_text(
        '{"mcpServers": {"desk": {"command": "desk"}}}', encoding="utf-8"
    )
    for policy, count in (("", 1), ("policy: {}\n", 0)):
        (tmp_path / "brain.md").write_text(f"---\nname: clerk\n{policy}---\n", encoding="utf-8")
        assert check(str(tmp_path), Terminal()) == 0
        assert capsys.readouterr().out.count("warning: agent 'clerk' has no policy") == count
