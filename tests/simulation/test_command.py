"""`actgent simulate`: report, seed files, replay, and the pytest plugin."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from actgent.simulation import play
from actgent.simulation.parallel_seed_runs import read_seed

from .programs import CLERK, DOUBLE_REFUND

ACTGENT = Path(sys.executable).with_name("actgent")


def run(folder, *arguments):
    return subprocess.run(
        [ACTGENT, "simulate", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def failing(tmp_path):
    """A folder with a program that pays twice, and the report of its first failing seeds."""
    (tmp_path / "app.py").write_text(DOUBLE_REFUND, encoding="utf-8")
    done = run(
        tmp_path, "app.py", "--seeds", "12", "--jobs", "1", "--json", "report.json", "--junit", "report.xml"
    )
    return tmp_path, done


def test_failure_is_reported_and_saved(failing):
    """The report has totals, the shrunk story, the command that repeats it, and what was never seen."""
    folder, done = failing
    assert done.returncode == 1, done.stderr
    assert "12 seeds, " in done.stdout
    assert "each_call_pays_once" in done.stdout
    assert "THE PROCESS IS KILLED" in done.stdout
    assert "necessary: " in done.stdout
    assert "never seen in 12 seeds: " in done.stdout
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    failure = next(each for each in report["failures"] if each["story"])
    assert report["seeds"] == 12
    assert f"--seed {failure['seed']}:{failure['digest'][:4]}" in done.stdout
    suite = ET.parse(folder / "report.xml").getroot()
    assert int(suite.get("failures")) == len(report["failures"]) == len(suite)
    assert (folder / "tests" / "seeds" / f"{failure['seed']}.seed").exists()


def test_chosen_kinds_are_part_of_a_failure(tmp_path):
    """The printed command and the saved seed contain the kinds that each seed has."""
    (tmp_path / "app.py").write_text(DOUBLE_REFUND, encoding="utf-8")
    done = run(
        tmp_path, "app.py", "--seeds", "30", "--jobs", "1", "--always", "stop,tool", "--json", "r.json"
    )
    assert done.returncode == 1, done.stderr
    assert " --always stop,tool\n" in done.stdout
    saved = next((tmp_path / "tests" / "seeds").iterdir())
    seed, settings, left_out = read_seed(saved)
    assert settings.always == {"stop", "tool"}
    assert play(seed, settings, left_out).problems


def test_seed_is_replayed(failing):
    """The printed command shows the whole story again; another digest is mentioned."""
    folder, done = failing
    command = next(line for line in done.stdout.splitlines() if "reproduce: " in line)
    target = command.rpartition(" ")[2]
    again = run(folder, "app.py", "--seed", target)
    assert again.returncode == 1
    assert f"seed {target}, " in again.stdout
    assert "refund has taken effect" in again.stdout
    assert "differs" not in again.stdout
    assert (
        "differs from the one that was reported"
        in run(folder, "app.py", "--seed", target.partition(":")[0] + ":0000").stdout
    )


def test_saved_seed_is_a_test(failing):
    """Pytest runs saved seeds with the plugin: the test fails with the story, and passes once the program is right."""
    folder, _ = failing
    (folder / "conftest.py").write_text(
        'pytest_plugins = ["actgent.simulation.pytest_plugin"]\n', encoding="utf-8"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/seeds"]
    failed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert failed.returncode == 1
    assert "life 2 begins" in failed.stdout
    (folder / "app.py").write_text(
        DOUBLE_REFUND.replace('effect="idempotent"', 'effect="once"'), encoding="utf-8"
    )
    passed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert passed.returncode == 0, passed.stdout


def test_correct_program(tmp_path):
    """Two processes, each seed twice, SQLite: no failure, exit code 0."""
    (tmp_path / "app.py").write_text(CLERK, encoding="utf-8")
    done = run(
        tmp_path,
        "app.py",
        "--seeds",
        "4",
        "--jobs",
        "2",
        "--twice",
        "--journal",
        "sqlite",
        "--say",
        "refund order 7",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 seeds, " in done.stdout
    assert "0 failures" in done.stdout
    assert "not repeatable" not in done.stdout


def test_program_that_is_not_repeatable(tmp_path):
    """A program whose effects depend on memory addresses is named with its seeds."""
    (tmp_path / "app.py").write_text(
        CLERK.replace(
            'return "booked"',
            "return str(id(object()))[-9:] + str(__import__('itertools').count) + next(COUNT)",
        )
        + "\nimport actgent\nactgent.COUNT = getattr(actgent, 'COUNT', 0) + 1\nCOUNT = iter(map(str, [actgent.COUNT] * 99))\n",
        encoding="utf-8",
    )
    done = run(tmp_path, "app.py", "--seeds", "12", "--jobs", "1", "--twice")
    assert done.returncode == 1, done.stdout
    assert "not repeatable: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.py"], "no such file"),
        (["app.py", "--faults", "fire"], "an unknown kind 'fire'"),
        (["app.py", "--always", "fire"], "--always has an unknown kind 'fire'"),
        (["app.py", "--faults", "kill", "--always", "close"], "'close', which --faults excludes"),
        (["app.py", "--journal", "paper"], "must be memory or sqlite"),
        (["app.py", "--for", "long"], "must be a duration"),
        (["app.py", "--seed", "x"], "must be SEED or SEED:DIGEST"),
    ],
)
def test_wrong_option(tmp_path, arguments, words):
    """The error names the option and what it takes; exit code 2."""
    (tmp_path / "app.py").write_text(CLERK, encoding="utf-8")
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_time_limit(tmp_path):
    """The run ends after its time, and reports what was run."""
    (tmp_path / "app.py").write_text(CLERK, encoding="utf-8")
    done = run(tmp_path, "app.py", "--seeds", "100000", "--jobs", "1", "--for", "1s")
    assert done.returncode == 0, done.stdout
    assert "100,000 seeds" not in done.stdout
