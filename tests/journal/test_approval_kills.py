"""kill -9 around approval requests and decisions: granted calls run once, others never, and no confirmed decision is lost."""

import json
import sys
from pathlib import Path

CONSENTS = Path(__file__).with_name("consents.py")


def test_kills_round_approvals_lose_and_repeat_nothing(tmp_path, times, process_server):
    """Processes are killed before and after requests and decisions, with decisions in any order, until all is done."""
    kills = times(12, 150)
    command = [sys.executable, str(CONSENTS), f"sqlite:///{tmp_path}/journal-", str(tmp_path)]
    flags = ["--sessions", "4", "--kills", str(kills), "--seed", str(kills)]
    done = process_server.run([*command, *flags], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (done.stdout[:2000], done.stderr[-4000:])
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert report["kills"] == kills
    assert (
        report["asked"] >= 64 * report["works"] - report["kills"]
    )  # what died before it asked has no question
    assert report["effects"] > report["works"] * 40
