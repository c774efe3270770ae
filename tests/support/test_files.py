"""Files that several processes read and write."""

import stat
import subprocess
import sys

import pytest
import trio

from actgent import ConfigurationError
from actgent.support.files_shared_by_processes import file_change, write_whole

HOLDER = """
import sys, trio
from pathlib import Path
from actgent.support.files_shared_by_processes import file_change

async def main():
    async with file_change(Path(sys.argv[1])):
        print("held", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


async def test_lock_file_has_one_holder(tmp_path):
    """Twenty concurrent tasks that each add one to a number result in twenty."""
    path = tmp_path / "n"
    write_whole(path, "0")

    async def add():
        async with file_change(path):
            number = int(path.read_text(encoding="utf-8"))
            await trio.lowlevel.checkpoint()
            write_whole(path, str(number + 1))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(add)
    assert path.read_text(encoding="utf-8") == "20"


async def test_killed_process_releases_the_lock(tmp_path):
    """While the process has the lock, another one raises an error after its timeout. After a kill, the other one acquires it."""
    path = tmp_path / "n"
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE
    )
    with trio.fail_after(60):
        assert (await process.stdout.receive_some(100)).startswith(b"h")
        with pytest.raises(ConfigurationError, match=r"another process has held the lock of .* for 0\.1 s"):
            async with file_change(path, timeout_seconds=0.1):
                pytest.fail("two have it")
        process.kill()
        await process.wait()
        async with file_change(path):
            write_whole(path, "mine")
    assert path.read_text(encoding="utf-8") == "mine"


def test_file_is_written_completely_or_not_at_all(tmp_path):
    """A text that cannot be written leaves the old file and no temporary file. A new file has the expected mode."""
    path = tmp_path / "t"
    write_whole(path, "old", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["t"]


async def test_unwritable_folder_is_named_in_the_error(tmp_path):
    """The error also names the file that cannot be written."""
    with pytest.raises(ConfigurationError, match=r"nowhere/n cannot be locked"):
        async with file_change(tmp_path / "nowhere" / "n"):
            pytest.fail("there is no such folder")
