"""Exits of programs with an open portal. No program hangs, and each lost message is logged."""

import subprocess
import sys

import pytest

AGENT = """
import os, signal, sys, threading, time, trio
from actgent import LLM, BareAgent, ScriptedLLM, open_portal

class Slow(LLM):
    name = "slow"
    begun = threading.Event()

    async def complete(self, chat, *, on_text=None):
        self.begun.set()
        await trio.sleep_forever()

def handler(failure):
    print("ended as", failure.kind, flush=True)

slow = Slow()
agent = BareAgent("clerk", llm=slow, grace=1000)
"""


def run(code, **options):
    """Run a program, and return its output and its exit code. The program may take a minute."""
    done = subprocess.run(
        [sys.executable, "-c", AGENT + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )
    return done.stdout, done.stderr, done.returncode


def test_program_without_close_ends():
    """The program ends at once, whatever grace period its agents have.

    Handlers receive the failure, and the log names the remedy.
    """
    output, logged, code = run("""
portal = open_portal().open()
clerk = portal.start(agent)
clerk.create_session("ada", "Hello", on_exception=handler)
slow.begun.wait()
print("end of the program", flush=True)
""")
    assert (output, code) == ("end of the program\nended as stopped\n", 0)
    assert "use `with open_portal()`" in logged


def test_exception_ends_the_program():
    """The traceback is printed."""
    _, logged, code = run("""
portal = open_portal().open()
portal.start(agent)
raise ZeroDivisionError("mine")
""")
    assert code == 1
    assert "ZeroDivisionError: mine" in logged


@pytest.mark.parametrize("waiting", ["clerk.run('Hello')", "next(clerk.stream('Hello').__enter__())"])
def test_ctrl_c_ends_a_synchronous_program(waiting):
    """The block exits at once, and the exit code is that of an interrupted program."""
    _, logged, code = run(f"""
def press():
    slow.begun.wait()
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=press).start()
with open_portal() as portal:
    clerk = portal.start(agent)
    {waiting}
""")
    assert code == -2
    assert "KeyboardInterrupt" in logged


def test_ctrl_c_ends_an_asyncio_program():
    """The block exits at once, and the exit code is that of an interrupted program.

    The program runs under `asyncio.run`.
    """
    _, logged, code = run("""
import asyncio

async def main():
    async with open_portal() as portal:
        clerk = await portal.start(agent)
        await clerk.run("Hello")

def press():
    slow.begun.wait()
    time.sleep(0.5)  # asyncio's event loop does not notice a signal that arrives directly before its select
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=press).start()
asyncio.run(main())
""")
    assert code == -2
    assert "KeyboardInterrupt" in logged


def test_sys_exit_stops_the_agents_at_once():
    """The exit code is the program's."""
    _, _, code = run("""
with open_portal() as portal:
    portal.start(agent).create_session("ada", "Hello")
    slow.begun.wait()
    sys.exit(3)
""")
    assert code == 3


def test_forked_child_ends():
    """A forked child ends without waiting for the portal of its parent."""
    output, _, code = run("""
with open_portal() as portal:
    portal.start(agent)
    if not os.fork():
        print("child", flush=True)
        sys.exit(0)
    os.wait()
    print("parent", flush=True)
""")
    assert (output, code) == ("child\nparent\n", 0)


def test_many_portals_leave_no_thread():
    """The number of threads is the same before and after."""
    output, _, code = run("""
before = threading.active_count()
for _ in range(20):
    with open_portal() as portal:
        portal.start(BareAgent("quick", llm=ScriptedLLM(["Yes."]))).run("Hello")
ends = time.monotonic() + 10
while threading.active_count() > before and time.monotonic() < ends:
    time.sleep(0.05)
print(threading.active_count() - before, flush=True)
""")
    assert (output, code) == ("0\n", 0)
