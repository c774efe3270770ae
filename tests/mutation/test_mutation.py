"""The tests detect faults in the package: a list of written mutants, and a random sample of generated ones."""

import importlib
import os
import sys
from pathlib import Path

import attrs
import pytest

HERE = str(Path(__file__).parent)
ROOT = Path(__file__).parents[2]
SOAK = bool(os.environ.get("ACTGENT_SOAK"))
STEPS = "tests/agents/presets/test_steps_agent.py"
PLAN = "tests/agents/presets/test_plan_agent.py"
GOAL = "tests/agents/presets/test_goal_agent.py"
TASKS = "tests/agents/delegation/test_tasks.py"
MODES = "tests/agents/modes/test_modes.py"
OURS = {
    "a further key is taken": (
        "actgent/tools/schemas/python_types.py",
        '**_schema(rewritten), "additionalProperties": False',
        '**_schema(rewritten), "additionalProperties": True',
        STEPS,
    ),
    "untidy JSON is refused": (
        "actgent/structured_output/extract_json.py",
        "return read(text, repairs=True)",
        "raise Unreadable(text)",
        "tests/protocols/test_steps.py",
    ),
    "a tool's output does not stand in": (
        "actgent/protocols/plan/plan_protocol.py",
        "found := answer.content or work.output",
        "found := answer.content",
        PLAN,
    ),
    "priority of a delegated task": (
        "actgent/agents/teams/agents_as_tools.py",
        'Priority.of(arguments.get("priority", "NORMAL"))',
        'Priority.of("NORMAL")',
        TASKS,
    ),
    "schedules do not travel": (
        "actgent/journal/session_export_and_fork.py",
        "tuple(map(record_of, session.records))",
        'tuple(r for r in map(record_of, session.records) if "chedule" not in type(r).__name__)',
        MODES,
    ),
    "thoughts of an item": (
        "actgent/protocols/plan/plan_protocol.py",
        "events: list[Outcome] = [*_events(thoughts=answer.thoughts)]",
        "events: list[Outcome] = []",
        PLAN,
    ),
    "thoughts of the answer": (
        "actgent/protocols/plan/plan_protocol.py",
        "return [*_events(thoughts=thoughts), *self.conclude",
        "return [*self.conclude",
        PLAN,
    ),
    "what a plan took": (
        "actgent/agents/single_turn_run.py",
        "usage=reply.usage if reply",
        "usage=after.usage if reply",
        PLAN,
    ),
    "how long it took": ("actgent/agents/single_turn_run.py", "trio.current_time() - started", "1.0", PLAN),
    "how many tools it called": (
        "actgent/agents/single_turn_run.py",
        "tool_calls += 1",
        "tool_calls = 1",
        PLAN,
    ),
    "how much history is shown": (
        "actgent/agents/plan_agent.py",
        'session.state.get(CONFIG, {}).get("history")',
        "2",
        PLAN,
    ),
    "a failed tool counts as used": (
        "actgent/protocols/goal/goal_progress.py",
        "            progress.has_failed = True\n            continue\n",
        "            progress.has_failed = True\n",
        GOAL,
    ),
    "all tools count as used": (
        "actgent/agents/goal/goal_result.py",
        "used_tools=tuple(progress.used_tools)",
        'used_tools=("ok",)',
        GOAL,
    ),
}
"""Written mutants by the broken feature: module, original text, replacement, and the tests that must detect it."""
SHARE = 0.7
"""Minimum share of detected mutants in a random sample. The others are printed for a review."""


def load(name):
    """Import a module of this folder. These modules import each other as scripts do."""
    if HERE not in sys.path:
        sys.path.insert(0, HERE)
    return importlib.import_module(name)


def ours(name):
    """Return a written mutant and its tests."""
    path, before, after, tests = OURS[name]
    source = (ROOT / path).read_text(encoding="utf-8")
    assert before in source, f"{path} has changed: write the mutant {name!r} anew"
    mutant = load("mutants").Mutant(path, 0, name, before, after, source.replace(before, after))
    return mutant, tests


@pytest.mark.parametrize("name", OURS)
def test_mutants_of_ours_can_be_made(name):
    """The module contains the text that the mutant replaces, and the result is valid Python."""
    mutant, tests = ours(name)
    compile(mutant.source, mutant.path, "exec")
    assert (ROOT / tests).is_file()


def test_each_kind_of_mutant(tmp_path):
    """Each mutant has one fault. Docstrings, assertions and errors do not change."""
    (tmp_path / "m.py").write_text(
        '''
class A:
    def f(self, a: int = 3) -> int:
        """Say 1 == 1."""
        assert a < 9
        if a == 1 and not self.b:
            raise ValueError(a + 1)
        self.g(f"{a}")
        return a + 2
'''
    )
    made = list(load("mutants").mutants_of(tmp_path, "m.py"))
    assert [(mutant.place, mutant.before, mutant.after) for mutant in made] == [
        ("A.f", "a == 1 and (not self.b)", "a == 1 or not self.b"),
        ("A.f", "a == 1", "a != 1"),
        ("A.f", "not self.b", "self.b"),
        ("A.f", "1", "2"),
        ("A.f", "self.g(f'{a}')", "pass"),
        ("A.f", "return a + 2", "return None"),
        ("A.f", "a + 2", "a - 2"),
        ("A.f", "2", "3"),
    ]
    for mutant in made:
        compile(mutant.source, "m.py", "exec")


def test_each_pattern_names_modules():
    """Each pattern matches a module, also after a module was moved."""
    hunt = load("hunt")
    assert [
        pattern for pattern in hunt.SUITES if not any(hunt.fnmatch(path, pattern) for path in hunt.targets())
    ] == []


def test_each_module_has_its_tests():
    """The tests with the name of the module or its folder are first, then all tests of its layer."""
    hunt = load("hunt")
    missing = [
        (path, test) for path in hunt.targets() for test in hunt.suite_of(path) if not (ROOT / test).exists()
    ]
    assert missing == []
    assert hunt.suite_of("actgent/protocols/goal/goal_progress.py") == [
        "tests/protocols/test_goal.py",
        "tests/protocols",
        "tests/agents",
    ]
    assert hunt.suite_of("actgent/limits_and_schedules/budget.py")[0] == "tests/agents/limits/test_budget.py"


def test_mutants_are_detected_by_the_tests_of_their_module():
    """The tests pass without a mutant, and fail with one."""
    hunt = load("hunt")
    mutant, tests = ours("thoughts of the answer")
    whole = attrs.evolve(mutant, source=(ROOT / mutant.path).read_text(encoding="utf-8"))
    verdicts = list(hunt.hunt([mutant, whole], tests=[tests], workers=1))
    assert [verdict.is_noticed for verdict in verdicts] == [True, False]
    assert [verdict.by.startswith(f"FAILED {tests}::test_") for verdict in verdicts] == [True, False]


def test_tests_that_fail_anyway_notice_nothing(tmp_path):
    """The run raises an error, because tests that fail without a mutant prove nothing."""
    (tmp_path / "test_wrong.py").write_text("def test_wrong():\n    assert False\n")
    mutant, _ = ours("thoughts of the answer")
    with pytest.raises(RuntimeError, match="without a mutant"):
        list(load("hunt").hunt([mutant], tests=[str(tmp_path / "test_wrong.py")], workers=1))


def test_mutation_run_resumes_from_its_report(tmp_path, capsys):
    """Mutants in the report are counted and not tested again."""
    hunt, report = load("hunt"), tmp_path / "hunt.jsonl"
    first, second = hunt.sample(2, 1, "limits_and_schedules/cron")
    hunt.write_into(report, hunt.Verdict(first, is_noticed=True, by="FAILED tests/test_it.py"))
    hunt.write_into(report, hunt.Verdict(second, is_noticed=False))
    assert hunt.noticed_in(report) == {str(first): True, str(second): False}
    assert (
        hunt.main(
            ["--count", "2", "--seed", "1", "--only", "limits_and_schedules/cron", "--report", str(report)]
        )
        == 1
    )
    assert capsys.readouterr().out == "1 of 2 noticed\n"


@pytest.mark.skipif(not SOAK, reason="part of `make soak`")
@pytest.mark.parametrize("name", OURS)
def test_mutants_of_ours_are_noticed(name):
    """Each mutant breaks a feature of the specifications, and the tests once passed with it."""
    mutant, tests = ours(name)
    (verdict,) = load("hunt").hunt([mutant], tests=[tests], workers=1)
    assert verdict.is_noticed, mutant


@pytest.mark.skipif(not SOAK, reason="part of `make soak`")
def test_most_mutants_are_noticed(capsys):
    """The sample is drawn from all mutants. `ACTGENT_MUTANTS` sets its size and its seed."""
    hunt = load("hunt")
    count, _, seed = os.environ.get("ACTGENT_MUTANTS", "40:1").partition(":")
    verdicts = list(hunt.hunt(hunt.sample(int(count), int(seed or 1))))
    survivors = [verdict.mutant for verdict in verdicts if not verdict.is_noticed]
    with capsys.disabled():
        print(*(f"\nsurvives: {mutant}" for mutant in survivors))
    assert len(survivors) <= (1 - SHARE) * len(verdicts)
