"""Each example runs offline, as a new user runs it, and prints its essential lines."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from .clusters import DATABASE

EXAMPLES = Path(__file__).parents[1] / "examples"

ESSENTIAL = {
    "actors.py": [
        "'What do we have?': There are 420 crowns in the till.",
        "not delivered: 80 to till, it failed 1 time, last with PermissionError",
        "'And now?': There are 500 crowns in the till.",
        "<Runtime: 1 agent, 2 actors, 0 dead letters>",
    ],
    "agent_generator.py": [
        "AgentGenerator: Error: The agent was not created: the name of an agent's folder must consist of",
        "AgentGenerator: made poet",
        "smith: Your poet is ready.",
        "a poet, rhyme: always: Roses are red.",
    ],
    "builder.py": [
        "from_folder: advice: Sow it in August.",
        "from_builders: advice: Sow it in August.",
        "directly: advice: Sow it in August.",
        "event: water_plan",
        "tool: plan_water -> 100 litres a week",
        "gardener: Give them 100 litres a week.",
    ],
    "chat.py": ["coach: Good morning, Ada!", "coach: You are Ada", "remembers 6 messages"],
    "coming_from_actgent.py": [
        'ada, search_files: ["brain.md", "clarification.md", "creation.md"]',
        "ada, event: Creation {'name': 'poet'",
        "ada, AgentGenerator: made poet",
        "ada, reply: Your poet is ready.",
        "bob, event: clarification {'questions': ['Which role?']}",
        "bob, failed: model: the provider does not answer",
    ],
    "coming_from_acton.py": [
        "It is 5.",
        "'PlanEvent', 'StreamStart', 'StreamEnd', 'StepEvent', 'ToolExecutionEvent'",
        """["KeyError: 'Atlantis'"]""",
        "no answer: no route to the model",
        "too many iterations: the turn reached its limit of 2 model calls",
    ],
    "coming_from_appagent.py": [
        "onboarding, deploy: Error: Tool 'deploy' is not available in onboarding mode.",
        "plan, set_mode: Error: the mode stays 'plan'",
        "deploy: shop is deployed",
        "review, audit: shop is in order",
        '"last_deployed": "shop"',
        "refused: the mode stays 'integration'",
        "'act -> review by agent'",
        "[{'owner': 'ada', 'service': 'shop'}]",
    ],
    "coming_from_art.py": [
        "THOUGHTS, Thoughts: Both.",
        "TOOL_EXECUTION, weather: error: ConnectionError: no weather for Irkutsk today",
        "partial after 2 model calls: Lake Baikal is 1642 m deep.",
        'send_mail: error Tool "send_mail" is not enabled for session "t1".',
        "error after 0 model calls: the provider does not answer",
        "['depth', 'weather', 'send_mail']",
    ],
    "coming_from_tagent.py": [
        "completed_with_formatting lake='Baikal' depth=1642",
        "Error: KeyError: 'Nessie'",
        "incomplete {'Baikal': 1642} LimitReached",
        "{'Baikal': 1642, 'notes': ['deep']}",
    ],
    "evaluation.py": ["brief: 6 of 6 passed", "polite: 3 of 6 passed", "polite failed brief: Thank you"],
    "custom_protocol.py": ["Oslo lies at the end of a fjord.", "3 model calls"],
    "prompt_injection.py": [
        "to='mallory' comes from read_mail",
        "result: paid 40 euros to acme: invoice 17",
        "It depends on: read_mail",
        "night: refused: the model read untrusted text of read_mail before it chose to, euros.",
    ],
    "approval.py": [
        "asks: May the tool 'pay' run? {'what': 'printer', 'amount': 900}",
        "the session is suspended",
        "paid 20 for paper\npaid 400 for chairs\npaid 300 for printer",
        "Error: User denied access to tool execution",
        "the session is idle",
    ],
    "delegation.py": [
        "can forecast: meteorologist",
        "lead: I have asked three colleagues",
        "lead: given to agent 'meteorologist', failed (model): scripted: its client raised ConnectionError",
        "1,642 m.",
        "Turkic: rich lake.",
    ],
    "deps.py": ["tea for ada, who has 7 coins left", "cake for Bob, who has 2 coins left"],
    "fastapi_service.py": ['ask: "Good morning, how can I help?"', "stream: Good morning, how can I help?"],
    "hypercorn_service.py": ['ask: "Good morning, how can I help?"', "stream: Good morning, how can I help?"],
    "wsgi_service.py": ["ask: Good morning, how can I help?", "stream: Good morning, how can I help?"],
    "goal.py": [
        "compare: Error: ValueError: there must be two depths",
        'compare: {"difference": 172}',
        "completed after 11 iterations: Baikal is deeper than Tanganyika, by 172 m.",
        "achieved: False",
        "The goal was not achieved: the limit of 2 iterations was reached (max_iterations=2).",
        "Missing: the depth of Tanganyika",
    ],
    "goal_command.py": [
        "$ actgent goal 'How deep is Lake Baikal?' --search-dir .",
        'decides: execute {"tool": "depth", "args": {"lake": "baikal"}}',
        "state: depth = 1642",
        "ended: completed_with_formatting after 4 model calls",
        "Baikal",
        "1642",
        "exit code 0",
    ],
    "own_agent.py": [
        "printer: refuse, we have two printers",
        "paper: approve, paper is used up",
        "refused: 1",
        "assistant: I judge what Ada asks for.",
        "user: requests refused so far: 1",
    ],
    "own_loop.py": ["good: Oslo has 720,000 people", "calls: 2 of cheap, 2 of strong"],
    "modes.py": [
        "plan: Error: Tool 'deploy' is not available in plan mode.",
        "act: shop is at version 7 now",
        "review: Error: Tool 'deploy' is not available in review mode.",
        "the mode stays 'review' and does not become 'act'",
        "- You review now what was done in act.",
        "- The mode is now act (before: review).",
    ],
    "pipeline.py": [
        "✓ first",
        "– flat",
        "✓ page",
        "success: Baikal is 1642 m deep, Geneva only 310. See https://lakes.example/Baikal.",
        "deeper took 2 tries",
        "again: monday/task/first monday/task/second monday/task/deeper@2  monday/task/page@2",
    ],
    "plan.py": [
        "past: failed",
        "compare: cancelled",
        "partial after 8 model calls: Lake Baikal is 1642 m deep. The archive is closed",
        "[-] compare: compare both",
        "success after 3 model calls: Lake Baikal is about 1.6 km deep.",
        "[x] depth: find the depth",
    ],
    "limits.py": [
        "worker: a part",
        "lead: the turn reached its limit of 5 model calls",
        "tokens left",
        "clerk: the session reached its limit of 200 tokens",
    ],
    "remote_client.py": [
        "clerk: Good day, Ada.",
        "calls that wait for an approval: pay",
        "tool: paid 900",
        "clerk: It is paid.",
        "received the events up to record",
    ],
    "routing.py": ["goes to BILLING", "answer: Invoice 7 is paid.", "goes to REPAIRS", "You are welcome!"],
    "steps.py": [
        "1. plan: Look up the distance / Look  ...",
        "2. execution: distance completed 463 km, ferry failed the timetable of Bergen is not available today",
        "3. final: Bergen is 463 km away. ...",
        "after 3 steps: Bergen is 463 km away. I could not find out about the ferry.",
    ],
    "streaming.py": ["[depth: 1642]", "Lake Baikal is 1642 metres deep", "tokens]"],
    "structured_output.py": ["Offer(item='bicycle', price=120.0", "after 2 model calls"],
    "thousand_agents.py": ["1000 different answers in"],
    "tools.py": ["square_root: success: 42.0", "population: success: 718000", "square_root: error: "],
    "toolsets.py": [
        "shop: connected",
        "convert: 9.20 EUR",
        "shop_order: ordered; 2 left",
        "report_42: report 42",
        "find_tools, call_tool, convert",
        "shop: closed",
    ],
    "urgent.py": [
        "refused: the inbox of agent clerk is full",
        "interrupted: an urgent message came",
        "Done: Leave the building!",
        "Done: file letter 1",
        "Done: file letter 3",
    ],
    "weather.py": ["21.5", "snow", "404", "there is no station in Atlantis", "guide: Turin is sunny"],
}
"""Lines of each example that must be printed, in this order."""


def test_every_example_is_tested():
    """Each example has its essential lines here. An example in a folder has a separate test."""
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(ESSENTIAL)
    assert sorted(path.parent.name for path in EXAMPLES.glob("*/__main__.py")) == ["cluster", "fastapi_users"]


def run_cluster(**places):
    """Run the cluster example as a process that can be killed together with its children."""
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "ACTGENT_JOURNAL": DATABASE}
    command = [sys.executable, EXAMPLES / "cluster"]
    return subprocess.run(
        command, env={**environment, **places}, capture_output=True, text=True, timeout=600, check=False
    )


def test_the_cluster_survives_a_kill(no_keys):
    """One of two nodes is killed, and the other answers the waiting messages. No answer is missing or doubled, and the schema is dropped."""
    done = run_cluster()
    if done.returncode == os.EX_UNAVAILABLE:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    pool, waiting, total, first, second = re.search(
        r"node web-1 of cluster (\S+) at http://\S+\n.*web-1 serves [1-9].*web-2 serves [1-9].*"
        r"kill -9 web-1 after [\d.]+ s: (\d+) of its sessions wait.*"
        r"\n(\d+) messages: (\d+) answered by web-1, (\d+) answered by web-2\n"
        r"0 without an answer, 0 answered twice, 16 of 16 sessions in order\n"
        r"takeover: [\d.]+ s to the first answer, [\d.]+ s until each session had one\n$",
        done.stdout,
        re.DOTALL,
    ).groups()
    assert int(waiting) > 0
    assert int(first) + int(second) == int(total) >= 16 * 10
    import psycopg

    with psycopg.connect(DATABASE) as database:
        left = database.execute("SELECT to_regnamespace(%s)", (pool.replace("-", "_"),)).fetchone()
    assert left == (None,)


def test_a_cluster_says_that_its_database_is_missing():
    """The example ends at once with a separate exit code. The error names the variable to set."""
    done = run_cluster(ACTGENT_JOURNAL="postgresql://postgres@127.0.0.1:1/test")
    assert done.returncode == os.EX_UNAVAILABLE
    assert "PostgreSQL is missing" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_fastapi_service_continues_after_a_restart(tmp_path, no_keys):
    """Users see only their sessions, a restart keeps the open approval, and errors have HTTP statuses."""
    pytest.importorskip("fastapi", reason="fastapi is not installed")
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "fastapi_users"],
        env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [re.sub(r"\['[0-9a-f]+\.ada-1'\]", "[ID]", line) for line in done.stdout.splitlines()]
    assert lines == [
        "send: 202",
        "  tool_call: {'name': 'refund', 'arguments': {'order': 7, 'euros': 20}}",
        "  agent_suspended: [ID]",
        "ada decides: 403",
        "restart",
        "a session of ada: 404 WrongOwner",
        "approval: ada refund {'order': 7, 'euros': 20}",
        "eve decides: 204",
        "  agent_resumed: [ID]",
        "  tool_execution: refunded 20 euros for order 7",
        "  final_response: Done: I refunded 20 euros for order 7.",
        "again: 409",
    ]


CONCURRENT = {"coming_from_art.py": ["  ERROR, Failed: model: the provider does not answer"]}
"""Lines that a concurrent task prints, in no fixed order to the others."""


@pytest.mark.parametrize("name", sorted(ESSENTIAL))
def test_example_prints_its_essential_lines(name, no_keys, capsys):
    """The example prints its essential lines in their order, and needs no key."""
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(".*".join(map(re.escape, ESSENTIAL[name])), printed, re.DOTALL), printed
    for line in CONCURRENT.get(name, []):
        assert line in printed.splitlines(), printed


@pytest.mark.parametrize("name", sorted(ESSENTIAL))
def test_examples_have_a_docstring_and_are_short(name):
    """An example begins with a docstring and has fewer than 100 lines."""
    code = (EXAMPLES / name).read_text(encoding="utf-8")
    assert code.startswith('"""')
    assert len(code.splitlines()) < 100


def test_notebook_cells_run(no_keys):
    """A Jupyter kernel runs the notebook. Its cells get answers by blocking calls and by `await`."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300).execute()
    outputs = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}

    def printed(cell):
        # A kernel that was interrupted in a `print` sends its text in two outputs.
        return "".join(each.text for each in outputs[cell])

    assert printed("run") == "You said: good morning\n"
    assert printed("stream").replace("|", "") == "You said: count to three"
    assert "You said: remember the milk" in outputs["session"][0].data["text/plain"]
    assert printed("asyncio") == "I help.\n"
    assert outputs["close"] == []
