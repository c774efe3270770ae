"""Real processes, killed with SIGKILL: nothing accepted is lost, nothing that counts is done twice."""

import json
import sys
from pathlib import Path

import pytest

CRASHES = Path(__file__).with_name("crashes.py")
FOLLOWED = Path(__file__).with_name("followed_lives.py")
RELAXED = Path(__file__).with_name("relaxed_lives.py")
FULL = {"sessions": 100, "messages": 2, "rounds": 5}
SHORT = {"sessions": 5, "messages": 1, "rounds": 3}


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request, tmp_path):
    """The address of a journal that other processes can open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/journal.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def run_crashes(lives):
    """`run_crashes(url, folder, **figures)` gives the report of a script, and shows its problems if there are any."""

    def run(url, folder, *, script=CRASHES, **figures):
        flags = [word for name, value in figures.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, str(script), url, str(folder), *flags]
        done = lives.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, (done.stdout[:2000], done.stderr[-4000:])
        return json.loads(done.stdout)

    return run


def test_kills_lose_and_repeat_nothing(shared_url, tmp_path, times, run_crashes):
    """100 sessions of 10 steps end whenever their process is killed, and the kills hit calls that ran.

    With both journals these are 30 kills in the tests, and 300 with the soak switch.
    """
    kills = times(15, 150)
    report = run_crashes(shared_url, tmp_path, **FULL, kills=kills, seed=kills)
    assert report["kills"] == kills
    assert report["problems"] == []
    assert report["unknown"] > 0
    assert report["repeated"] > 0


def test_a_kill_after_each_write_loses_and_repeats_nothing(shared_url, tmp_path, times, run_crashes):
    """5 sessions of 3 steps end correctly whichever journal write their process dies after."""
    every = times(5, 1)
    report = run_crashes(shared_url, tmp_path, sessions=5, messages=1, rounds=3, every=every)
    assert report["problems"] == []
    assert report["kills"] >= 60 / every
    assert report["unknown"] > 0


def test_kills_of_short_lives_lose_and_repeat_nothing(shared_url, tmp_path, times, run_crashes):
    """The same where a process has little to do, and dies while it starts or ends."""
    report = run_crashes(shared_url, tmp_path, **SHORT, kills=times(5, 50), seed=1)
    assert report["problems"] == []


def test_kills_of_sessions_that_sleep_lose_and_repeat_nothing(shared_url, tmp_path, times, run_crashes):
    """The same where idle sessions leave memory, and come back with their next message."""
    figures = {"sessions": 30, "messages": 4, "rounds": 1, "awake": 2}
    report = run_crashes(shared_url, tmp_path, **figures, kills=times(5, 50), seed=2)
    assert report["problems"] == []


def test_kills_of_relaxed_processes_lose_the_last_moments_only(shared_url, tmp_path, times, run_crashes):
    """What is left of each session, and of all together, is a beginning of what happened; no tool runs twice."""
    report = run_crashes(shared_url, tmp_path, script=RELAXED, kills=times(3, 50), seed=3)
    assert report["problems"] == []
    assert report["lost"] < report["accepted"] / 2


def test_kills_keep_no_record_from_a_follower_and_repeat_none(shared_url, tmp_path, times, run_crashes):
    """20 readers of 5 sessions leave at random and come back by their cursors, also in the life after a kill."""
    figures = {"kills": times(3, 10), "readers": 20, "messages": times(500, 1000), "seed": 4}
    report = run_crashes(shared_url, tmp_path, script=FOLLOWED, **figures)
    assert report["problems"] == []
    assert report["kills"] > 0
    assert report["records"] > figures["messages"] * 5 * 4
