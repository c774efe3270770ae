"""Real processes that are killed with SIGKILL: no accepted message is lost, and no effect occurs twice."""

import json
import sys
from pathlib import Path

import pytest

CRASHES = Path(__file__).with_name("crashes.py")
FOLLOWED = Path(__file__).with_name("followed_lives.py")
RELAXED = Path(__file__).with_name("relaxed_lives.py")
FULL = {"sessions": 100, "messages": 2, "rounds": 5}
SHORT = {"sessions": 5, "messages": 1, "rounds": 3}


@pytest.fixture
def run_crashes(process_server):
    """Return a function `run_crashes(url, folder, **figures)` that runs a script and returns its report.

    It fails if the report has problems.
    """

    def run(url, folder, *, script=CRASHES, **figures):
        flags = [word for name, value in figures.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, str(script), url, str(folder), *flags]
        done = process_server.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, (done.stdout[:2000], done.stderr[-4000:])
        return json.loads(done.stdout)

    return run


def test_kills_lose_and_repeat_nothing(shared_url, tmp_path, times, run_crashes):
    """100 sessions of 10 steps end correctly although processes are killed at any moment, also during calls.

    This takes 30 kills for both journals, or 300 if ACTGENT_SOAK is set.
    """
    kills = times(15, 150)
    report = run_crashes(shared_url, tmp_path, **FULL, kills=kills, seed=kills)
    assert report["kills"] == kills
    assert report["problems"] == []
    assert report["unknown"] > 0
    assert report["repeated"] > 0


def test_a_kill_after_each_write_loses_and_repeats_nothing(shared_url, tmp_path, times, run_crashes):
    """5 sessions of 3 steps end correctly if a process is killed after any of its journal writes."""
    every = times(5, 1)
    report = run_crashes(shared_url, tmp_path, sessions=5, messages=1, rounds=3, every=every)
    assert report["problems"] == []
    assert report["kills"] >= 60 / every
    assert report["unknown"] > 0


def test_kills_of_short_lives_lose_and_repeat_nothing(shared_url, tmp_path, times, run_crashes):
    """Processes with little work are killed during their start or end."""
    report = run_crashes(shared_url, tmp_path, **SHORT, kills=times(5, 50), seed=1)
    assert report["problems"] == []


def test_kills_with_evicted_sessions_lose_and_repeat_nothing(shared_url, tmp_path, times, run_crashes):
    """Idle sessions are evicted and return with their next message."""
    figures = {"sessions": 30, "messages": 4, "rounds": 1, "awake": 2}
    report = run_crashes(shared_url, tmp_path, **figures, kills=times(5, 50), seed=2)
    assert report["problems"] == []


def test_kills_of_relaxed_processes_lose_only_the_last_records(shared_url, tmp_path, times, run_crashes):
    """Each session, and all sessions together, keep a prefix of their events. No tool runs twice."""
    report = run_crashes(shared_url, tmp_path, script=RELAXED, kills=times(3, 50), seed=3)
    assert report["problems"] == []
    assert report["lost"] < report["accepted"] / 2


def test_followers_miss_and_repeat_no_record_after_kills(shared_url, tmp_path, times, run_crashes):
    """20 readers of 5 sessions leave at random and resume by their cursors, also in the process after a kill."""
    figures = {"kills": times(3, 10), "readers": 20, "messages": times(500, 1000), "seed": 4}
    report = run_crashes(shared_url, tmp_path, script=FOLLOWED, **figures)
    assert report["problems"] == []
    assert report["kills"] > 0
    assert report["records"] > figures["messages"] * 5 * 4
