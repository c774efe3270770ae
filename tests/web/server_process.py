"""Processes of `actgent serve`: start in a folder, end after the test, and read of their output."""

import re
import subprocess
from contextlib import contextmanager


@contextmanager
def open_processes():
    """Yield a list of processes. They are killed at the end of the block, and their pipes are closed."""
    running = []
    yield running
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@contextmanager
def open_servers(commands, folder, *arguments):
    """Yield a function that starts `actgent serve team.py` with arguments in a folder. Its output and errors are pipes."""
    with open_processes() as running:

        def start(*options, **settings):
            line = ["actgent", "serve", "team.py", "--bind", "127.0.0.1:0", *arguments, *options]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            running.append(commands.popen(line, **pipes, cwd=folder, **settings))
            return running[-1]

        yield start


def until(stream, pattern):
    """Read lines up to the first match, and return its first group."""
    lines = b""
    while line := stream.readline():
        lines += line
        if found := re.search(pattern, line.decode()):
            return found[1]
    raise AssertionError(lines.decode())
