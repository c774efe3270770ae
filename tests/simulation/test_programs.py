"""Programs of several files and agents, and programs that another run does not repeat."""

import subprocess
import sys
import types
from pathlib import Path

import pytest

from actgent.simulation import Settings, play

ACTGENT = Path(sys.executable).with_name("actgent")
AGENT = """
from actgent import BareAgent, tool

{imports}

@tool(effect="idempotent")
async def book(order: str) -> str:
    \"\"\"Book an order.\"\"\"
    {body}
    return "booked"

clerk = BareAgent("clerk", llm="openai:gpt-5.2", tools=[book])
"""


@pytest.fixture
def write(tmp_path):
    """Write the files of a program, and return the settings of the program `app.py`."""

    def write_files(**files):
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return Settings(program=tmp_path / "app.py")

    return write_files


def problems(settings, seeds=12):
    return [problem for seed in range(seeds) for problem in play(seed, settings).problems]


def test_program_modules_are_reimported_in_each_life(write):
    """This includes folders without `__init__.py` and modules that a tool imports. Module state does not survive a process."""
    state = "processes = []\n"
    once = "{0}.processes.append(1)\nassert len({0}.processes) == 1, 'the state of {0} survived'\n"
    late = "import late\n    late.calls.append(life)\n    assert set(late.calls) == {life}, late.calls"
    settings = write(
        shop=state,
        parts__stock=state,
        late="calls = []\n",
        app=AGENT.format(
            imports="import shop\nfrom parts import stock\n"
            + once.format("shop")
            + once.format("stock")
            + "life = object()\n",
            body=late,
        )
        + """
from actgent.simulation import invariant

@invariant
def each_call_is_booked(story):
    import shop
    assert shop.processes == [1]
    assert all("error" not in event.text for event in story.events if event.kind == "result" and "book" in event.text)
""",
    )
    path, modules = list(sys.path), set(sys.modules)
    assert not [each for each in problems(settings) if "survived" in each or "cannot be run" in each]
    assert sys.path == path
    assert not {"shop", "parts", "parts.stock", "late", "app", "__actgent_simulation__"} & (
        set(sys.modules) - modules
    )


def test_modules_that_were_loaded_before_are_restored(write, tmp_path):
    """A test that uses a module of the program finds the same module after a simulation."""
    settings = write(
        shop="", app=AGENT.format(imports="import shop\nassert not hasattr(shop, 'old')", body="")
    )
    loaded = types.ModuleType("shop")
    loaded.__file__, loaded.old = str(tmp_path / "shop.py"), True
    sys.modules["shop"] = loaded
    try:
        assert not problems(settings, 2)
        assert sys.modules["shop"] is loaded
        assert loaded.old
    finally:
        del sys.modules["shop"]


def test_installed_libraries_below_the_folder_are_not_reimported(write, tmp_path, monkeypatch):
    """A virtual environment may be below the folder of the program, and a library may reject a second import."""
    library = "venv/lib/site-packages"
    settings = write(
        **{f"{library}/once_only".replace("/", "__"): "loaded = []\n"},
        app=AGENT.format(imports="import once_only\nonce_only.loaded.append(1)", body=""),
    )
    monkeypatch.syspath_prepend(tmp_path / library)
    try:
        assert not problems(settings, 3)
        assert len(sys.modules["once_only"].loaded) > 3
    finally:
        sys.modules.pop("once_only", None)


def test_a_program_that_always_imports_more_is_run_a_few_times(write):
    """A seed is repeated if modules were imported, but at most twice."""
    settings = write(
        app=AGENT.format(
            imports="import sys, types\n"
            "made = [name for name in sys.modules if name.startswith('made_in_a_life_')]\n"
            "assert len(made) < 20, 'the seed is repeated too often'\n"
            "sys.modules[f'made_in_a_life_{len(made)}'] = types.ModuleType('made')",
            body="",
        )
    )
    try:
        assert not play(1, settings).problems
        assert len([name for name in sys.modules if name.startswith("made_in_a_life_")]) >= 3
    finally:
        for name in [name for name in sys.modules if name.startswith("made_in_a_life_")]:
            del sys.modules[name]


TEAM = """
from actgent import BareAgent, tool

@tool(effect="once", approval=True)
async def dig(place: str) -> str:
    \"\"\"Dig at a place.\"\"\"
    return "dug"

@tool(effect="once")
async def mend(place: str) -> str:
    \"\"\"Mend a place.\"\"\"
    return "mended"

"""
FIRST = """
digger = BareAgent("digger", llm="m:m", tools=[dig, mend])
chief = BareAgent("chief", llm="m:m", tools=[digger.as_tool()])
"""
LAST = """
team = [BareAgent("digger", llm="m:m", tools=[dig, mend])]
chief = BareAgent("chief", llm="m:m", tools=[team[0].as_tool()])
"""
INSIDE = """
chief = BareAgent("chief", llm="m:m", tools=[BareAgent("digger", llm="m:m", tools=[dig, mend]).as_tool()])
"""


@pytest.mark.parametrize("agents", [FIRST, LAST, INSIDE], ids=["first", "last", "inside"])
def test_members_of_a_team_are_started_once_and_observed(write, agents):
    """An agent that another one starts is not started again. Its tools are recorded, and its approvals are decided."""
    settings = write(app=TEAM + agents)
    effects = set()
    for seed in range(25):
        outcome = play(seed, settings)
        assert not outcome.problems
        effects |= {run.tool for each in outcome.story.sessions("digger") for run in each.effects()}
    assert {"dig", "mend"} <= effects


def test_two_agents_of_one_name_are_reported(write):
    """The second one would never run."""
    settings = write(
        app=AGENT.format(imports="", body="")
        + '\nother = BareAgent("clerk", llm="openai:gpt-5.2", tools=[])\n'
    )
    assert any("clerk" in each and "failed" in each for each in problems(settings, 1))


# --- the command -----------------------------------------------------------------------------


def run(folder, *arguments):
    return subprocess.run(
        [ACTGENT, "simulate", "app.py", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_process_that_ends_is_reported(write, tmp_path):
    """A tool that ends the interpreter ends the run with an error, and not with a wait for ever."""
    write(app=AGENT.format(imports="import os", body="os._exit(3)"))
    done = run(tmp_path, "--seeds", "20", "--jobs", "2")
    assert done.returncode == 2
    assert "run with --jobs 1" in done.stderr


def test_the_time_limit_ends_several_processes(write, tmp_path):
    """Seeds that run at the end of the time are completed, and no others begin."""
    write(app=AGENT.format(imports="", body=""))
    done = run(tmp_path, "--seeds", "100000", "--jobs", "2", "--for", "1s")
    assert done.returncode == 0, done.stderr
    assert "100,000 seeds" not in done.stdout
    assert " simulated in " in done.stdout


def test_a_failure_that_does_not_happen_again_is_reported(write, tmp_path):
    """A rule that depends on a file fails once only. The report says so, and the exit code is that of a failure."""
    write(
        app=AGENT.format(
            imports="from pathlib import Path\nfrom actgent.simulation import invariant", body=""
        )
        + "\n@invariant\ndef file_exists(story):\n"
        "    if story.seed == 9 and not Path('seen').exists():\n        Path('seen').write_text('')\n        assert False, 'there was no file'\n"
    )
    done = run(tmp_path, "--seeds", "10", "--jobs", "1")
    assert done.returncode == 1, done.stderr
    assert "seed 9  file_exists: there was no file" in done.stdout
    assert "the seed did not fail again" in done.stdout
    assert "not repeatable: 9." in done.stdout
