"""Server processes that a test kills and restarts."""

import re
import subprocess

import pytest

TEAM = """
from actgent import BareAgent, ScriptedLLM

def answer(chat):
    return "you said: " + chat.messages[-1].parts[0].text

clerk = BareAgent("clerk", llm=ScriptedLLM(answer))
"""


@pytest.fixture
def start(tmp_path, commands, no_keys):
    """Return a function that starts a server process on a port. All processes are killed at the end."""
    (tmp_path / "team.py").write_text(TEAM)
    running = []

    def starting(port=0):
        options = ["--bind", f"127.0.0.1:{port}", "--journal", "agents.db", "--tokens", "tokens.toml"]
        with (tmp_path / "errors.txt").open("ab") as errors:
            process = commands.popen(
                ["actgent", "serve", "team.py", *options], stdout=subprocess.PIPE, stderr=errors, cwd=tmp_path
            )
        running.append(process)
        text = ""
        while "/v1" not in text:
            text = process.stdout.readline().decode()
            assert text, (tmp_path / "errors.txt").read_text()
        return process, re.search(r"http\S+(?=/v1)", text)[0]

    yield starting
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


def make_token(commands, folder):
    made = commands.run(
        ["actgent", "token", "new", "--name", "ci", "--owner", "ada", "--scope", "chat"],
        capture_output=True,
        cwd=folder,
        text=True,
        check=True,
    )
    return re.search(r"act_\S+", made.stdout)[0]
