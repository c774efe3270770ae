"""The built site, which is built once for all tests and all workers of a run."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """Return the folder of the built site. A warning of the build fails every test that uses this fixture."""
    pytest.importorskip("sphinx", reason="the extra `docs` is not installed")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, told = shared / "site", shared / "site.told"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
            command += ["-c", "docs/site", "-d", str(shared / "doctrees"), "docs", str(folder)]
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            )
            told.write_text(done.stderr if done.returncode else "", encoding="utf-8")
    assert told.read_text(encoding="utf-8") == ""
    return folder
