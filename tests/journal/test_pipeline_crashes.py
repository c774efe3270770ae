"""Pipelines in processes that SIGKILL ends: equal outputs and no repeated effect."""

import json
import sys
from pathlib import Path

LIVES = Path(__file__).with_name("pipeline_lives.py")


def test_pipeline_output_is_unchanged_by_kills_at_each_write(shared_url, tmp_path, times, process_server):
    """Twelve steps, killed twice; with the soak switch the first time after each journal write."""
    every = times(29, 1)
    flags = ["--every", str(every), "--first", str(min(every, 3))]
    done = process_server.run(
        [sys.executable, str(LIVES), shared_url, str(tmp_path), *flags],
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, (done.stdout[:2000], done.stderr[-4000:])
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert report["kills"] >= 150 / every
