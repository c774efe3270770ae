"""Conversations at a real terminal: keys, paste, history, Ctrl-C, and slash commands."""

import os
import re
import signal
import sys
from pathlib import Path

import pexpect
import pytest

ACTGENT = Path(sys.executable).with_name("actgent")
PROMPT = r">\x08\x1b\[2C"
"""Output of the editor for an empty line after `> `."""
UP, CTRL_C, CTRL_D, CTRL_R = "\x1b[A", "\x03", "\x04", "\x12"


@pytest.fixture
def terminal(tmp_path):
    """Return a function that starts a command at a new terminal: `terminal(*arguments)`. Kill the command afterwards."""
    started = []
    dropped = re.compile(r"(OPENAI|ANTHROPIC|LLM)_|NO_COLOR|FORCE_COLOR|TTY_|COLUMNS")
    kept = {name: value for name, value in os.environ.items() if not dropped.match(name)}

    def start(*arguments, columns=200, **variables):
        env = kept | {"TERM": "xterm", "XDG_STATE_HOME": str(tmp_path / "state")} | variables
        child = pexpect.spawn(
            str(ACTGENT),
            [str(each) for each in arguments],
            env=env,
            encoding="utf-8",
            timeout=300,
            dimensions=(30, columns),
            cwd=str(tmp_path),
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.close(force=True)


def say(child, text, *, expect):
    """Type a line at the next prompt, and wait for an expected text."""
    child.expect(PROMPT)
    child.send(f"{text}\r")
    child.expect(expect)


def end(child, code=0):
    """Wait for the end of the command. Fail if it printed a traceback."""
    rest = child.read()
    child.close()
    assert "Traceback" not in rest
    assert (child.exitstatus, child.signalstatus) == (code, None)
    return rest


def test_slash_commands_in_a_conversation(terminal, tmp_path):
    """Each command prints its effect. A message that only looks like a command is sent."""
    (tmp_path / "notes.txt").write_text("What is 6 * 7?", encoding="utf-8")
    (tmp_path / "data.bin").write_bytes(b"\xff\x00")
    chat = terminal("chat", "--offline")
    say(chat, "What is 17 * 23?", expect=r"= 391\.")
    say(chat, "/help", expect=r"/stop.*/attach FILE.*Ctrl-D ends")
    say(chat, "/tools", expect=r"multiply: Multiply two integers\.\s+weekday")
    say(chat, "/usage", expect=r"\d+ tokens in, \d+ out, cost unknown; 4 messages")
    say(chat, "/attach data.bin", expect="it must be an image, audio")
    say(chat, "/attach nothing.png", expect="No such file")
    say(chat, "/attach", expect="no attachments")
    say(chat, "/attach notes.txt", expect=r"notes\.txt, .*next message")
    say(chat, "Read it", expect=r"6 \* 7 = 42\.")
    say(chat, "/stop", expect="no answer is running")
    say(chat, "/new", expect="a new session: ")
    say(chat, "/usage", expect="0 tokens in, 0 out.*0 messages")
    say(chat, "/nonsense", expect="unknown command /nonsense")
    say(chat, "/etc/hosts has 3 * 5", expect=r"= 15\.")
    chat.expect(PROMPT)
    chat.send("/quit\r")
    end(chat)


def test_ctrl_c_stops_only_the_answer(terminal):
    """/stop has the same effect. Another line that is typed during the answer is sent afterwards."""
    chat = terminal("chat", "--offline")
    say(chat, "long report", expect="Chapter 3 ")
    chat.send(CTRL_C)
    chat.expect("stopped")
    say(chat, "long report", expect="Chapter 3 ")
    chat.send("/stop\r")
    chat.expect("stopped")
    say(chat, "long report", expect="Chapter 3 ")
    chat.send("What is 3 * 4?\r")
    chat.expect("queued until the running answer ends")
    chat.send(CTRL_C)
    chat.expect(r"= 12\.")
    chat.expect(PROMPT)
    chat.send("half a line")
    chat.expect("half a line")
    chat.send(CTRL_C)
    chat.send("What is 5 * 5?\r")
    chat.expect(r"\n5 \* 5 = 25\.")
    chat.expect(PROMPT)
    chat.send(CTRL_C)
    chat.expect("press Ctrl-C again")
    chat.expect(PROMPT)
    chat.send(CTRL_C)
    end(chat)


def test_second_ctrl_c_ends_the_conversation(terminal):
    """SIGTERM ends an idle conversation at once. During an answer, the second SIGTERM ends it."""
    chat = terminal("chat", "--offline")
    chat.expect(PROMPT)
    chat.kill(signal.SIGTERM)
    end(chat, 143)
    chat = terminal("chat", "--offline")
    say(chat, "long report", expect="Chapter 3 ")
    chat.kill(signal.SIGTERM)
    chat.expect("force quit")
    chat.kill(signal.SIGTERM)
    end(chat, 143)


def test_pasted_lines_are_one_message(terminal):
    """Nothing is sent before Enter. A backslash and Alt-Enter also start a new line."""
    chat = terminal("chat", "--offline")
    chat.expect(PROMPT)
    chat.send("\x1b[200~first 2 * 3\nsecond 4 * 5\x1b[201~")
    chat.expect("second 4")
    chat.send("\r")
    chat.expect(r"2 \* 3 = 6, and 4 \* 5 = 20\.")
    chat.expect(PROMPT)
    chat.send("6 * 6 and\\\r7 * 7 and\x1b\r8 * 8\r")
    chat.expect(r"= 36, and .* = 49, and .* = 64\.")
    chat.expect(PROMPT)
    chat.send(CTRL_D)
    end(chat)


def test_line_history_is_stored(terminal, tmp_path):
    """The Up key shows earlier lines, also in the next conversation. Only this user can read the history file."""
    for typed in ("What is 17 * 23?\r", f"{UP}\r"):
        chat = terminal("chat", "--offline")
        chat.expect(PROMPT)
        chat.send(typed)
        chat.expect(r"= 391\.")
        chat.expect(PROMPT)
        chat.send(CTRL_D)
        end(chat)
    file = tmp_path / "state" / "actgent" / "chat_history"
    assert file.stat().st_mode & 0o777 == 0o600
    chat = terminal("chat", "--offline")
    chat.expect(PROMPT)
    chat.send(f"{CTRL_R}17\r")
    chat.send("\r")
    chat.expect(r"= 391\.")


def test_terminal_can_be_resized(terminal):
    """The line is redrawn for the new width, and the typed text is kept."""
    chat = terminal("chat", "--offline", columns=100)
    chat.expect(PROMPT)
    chat.send("What is " + "1" * 50)
    chat.setwinsize(20, 30)
    chat.expect(r"\x1b\[29C1")  # a line of 30 columns is full
    chat.send(" 2 * 3 ?\r")
    chat.expect(r"2 \* 3 = 6\.")


def test_approval_shows_the_choices(terminal, tmp_path):
    """`edit` starts with the requested arguments."""
    (tmp_path / "agent.py").write_text(
        """
from actgent import *

@tool(approval=True)
def sweep(path: str) -> str:
    "Sweep."
    return f"swept {path}"

script = [ToolCall("sweep", {"path": "/tmp"}), lambda chat: chat.messages[-1].parts[0].text]
agent = BareAgent("cleaner", llm=ScriptedLLM(script, repeat=True), tools=[sweep])
""",
        encoding="utf-8",
    )
    chat = terminal("chat", "agent.py")
    say(chat, "Go", expect=r'sweep\(\{"path": "/tmp"\}\)')
    chat.expect("yes, no, edit or answer")
    chat.send("what?\r")
    chat.expect(r"no REASON .*edit JSON .*answer TEXT")
    chat.expect("yes, no, edit or answer")
    chat.send("edit\r")
    chat.expect("arguments: .*/tmp")
    chat.send('\x7f\x7fx"}\r')
    chat.expect("swept /tmpx")
    say(chat, "Go", expect="yes, no, edit or answer")
    chat.send(CTRL_C)
    chat.expect("press Ctrl-C again")
    chat.send("no\r")
    chat.expect("REJECTED|rejected")


@pytest.mark.parametrize(("line", "result"), [("yes", "swept /a, swept /b"), ("n", "")])
def test_calls_of_one_answer_are_approved_together(terminal, tmp_path, line, result):
    """One `yes` approves all calls that the terminal shows. After any other line, each call has a separate question."""
    (tmp_path / "agent.py").write_text(
        """
from actgent import *

@tool(approval=True)
def sweep(path: str) -> str:
    "Sweep."
    return f"swept {path}"

calls = [ToolCall("sweep", {"path": path}) for path in ("/a", "/b")]
llm = ScriptedLLM([calls, lambda chat: ", ".join(part.text for part in chat.messages[-1].parts)])
agent = BareAgent("cleaner", llm=llm, tools=[sweep])
""",
        encoding="utf-8",
    )
    chat = terminal("chat", "agent.py")
    say(chat, "Go", expect=r'approval of 2 calls.*"/a".*"/b".*yes to all, or one by one\? ')
    chat.send(f"{line}\r")
    if result:
        chat.expect(result)
        return
    for path in ("/a", "/b"):
        chat.expect(f'"{path}".*yes, no, edit or answer')
        chat.send("no\r")
    chat.expect("(?i)rejected|denied")


def test_conversation_resumes_in_the_next_process(terminal, tmp_path):
    """With a journal, the session is the same, and its last messages are shown."""
    chat = terminal("chat", "--offline", "--journal", "talk.db")
    say(chat, "What is 17 * 23?", expect=r"= 391\.")
    chat.expect(PROMPT)
    chat.send(CTRL_D)
    end(chat)
    chat = terminal("chat", "--offline", "--journal", "talk.db", "--continue")
    chat.expect(r"user: What is 17 \* 23\?")
    say(chat, "/usage", expect="4 messages")


def test_unwritable_history_does_not_prevent_a_chat(terminal, tmp_path):
    """The history is kept in memory."""
    (tmp_path / "state").write_text("a file", encoding="utf-8")
    chat = terminal("chat", "--offline")
    say(chat, "What is 17 * 23?", expect=r"= 391\.")
