"""Forked processes behave as other processes: most cases also run in a real interpreter."""

import os
import signal
import subprocess
import sys

import pytest

REAL = subprocess.Popen


@pytest.fixture(params=["real", "forked"])
def start(request):
    """Return a function that starts Python code in a real interpreter or in a forked process: `start(code, *arguments, **options)`."""
    popen = REAL if request.param == "real" else request.getfixturevalue("process_server").popen

    def run(code, *arguments, **options):
        return popen([sys.executable, "-c", code, *arguments], **options)

    return run


def pipes(**options):
    """Return options for pipes at all three standard streams."""
    return {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}


@pytest.mark.parametrize(
    ("code", "expected", "complaint"),
    [
        ("", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('wrong')", 1, "wrong\n"),
        ("import os; os._exit(7)", 7, ""),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import atexit, os; atexit.register(os.write, 2, b'bye')", 0, "bye"),
        (
            "import os, threading, time; threading.Thread(target=lambda: (time.sleep(0.1), os.write(2, b'late'))).start()",
            0,
            "late",
        ),
    ],
)
def test_forked_process_has_its_exit_code(start, code, expected, complaint):
    """Cases: a normal end, an error, and a signal. Exit handlers run and threads are joined as in any interpreter."""
    with start(code, **pipes(text=True)) as process:
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (expected, "")
    assert err.endswith(complaint)
    assert bool(err) == bool(complaint)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signal_ends_a_forked_process(start, number):
    """A signal without a handler ends the process with this signal. After its end, no signal is sent."""
    code = """if True:
        import signal, time
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has none
        print(1, flush=True)
        time.sleep(60)
    """
    with start(code, **pipes()) as process:
        assert process.stdout.readline() == b"1\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.01)
        process.send_signal(number)
        assert process.wait(60) == process.poll() == -number
        process.kill()


def test_signal_handler_runs_in_the_main_thread(start):
    """The handler runs in the main thread, also under trio."""
    code = """if True:
        import signal, trio
        async def main():
            with trio.open_signal_receiver(signal.SIGTERM) as signals:
                print("ready", flush=True)
                async for number in signals:
                    print(number, flush=True)
                    break
        trio.run(main)
    """
    with start(code, **pipes(text=True)) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=300) == ("15\n", "")
    assert process.returncode == 0


def test_forked_processes_have_their_pipes(start):
    """Each process has its pipes, in bytes or text. Data that exceeds the capacity of a pipe is transferred."""
    code = "import sys; said = sys.stdin.read(); sys.stderr.write(said.upper()); sys.stdout.write(said)"
    with start(code, **pipes(text=True)) as process:
        assert process.communicate("schön" * 100_000, timeout=300) == ("schön" * 100_000, "SCHÖN" * 100_000)
    with start(code, **pipes()) as process:
        assert process.communicate(b"a", timeout=300) == (b"a", b"A")


def test_writer_gets_an_error_when_its_reader_ends(start):
    """The writer gets an error, because SIGPIPE is ignored."""
    code = "import sys; print(sys.stdin.read(1))\nwhile True: print('x' * 10_000)"
    with start(code, **pipes()) as process:
        process.stdout.close()
        process.stdin.write(b"a")
        process.stdin.flush()
        assert process.stderr.read().endswith(b"BrokenPipeError: [Errno 32] Broken pipe\n")
        assert process.wait(60) in (1, 120)


def test_files_can_be_output_streams(start, tmp_path):
    """The output is written to the opened file."""
    options = {"stdin": subprocess.DEVNULL}
    with (
        (tmp_path / "out").open("w") as out,
        start("print(input.__name__)", stdout=out, **options) as process,
    ):
        assert process.wait(60) == 0
    assert (tmp_path / "out").read_text() == "input\n"


def test_forked_process_has_arguments_folder_and_environment(start, tmp_path):
    """The process has the arguments, folder and environment of the call, and inherits none of the server's."""
    code = "import os, sys; print(sys.argv, os.getcwd(), dict(os.environ), __name__, sorted(os.listdir('/proc/self/fd')))"
    with start(code, "a b", cwd=tmp_path, env={"A": "1", "LC_ALL": "C.UTF-8"}, **pipes(text=True)) as process:
        out, _ = process.communicate(timeout=300)
    environment = {"A": "1", "LC_ALL": "C.UTF-8"}
    assert out == f"{['-c', 'a b']} {tmp_path} {environment} __main__ {['0', '1', '2', '3']}\n"


def test_script_imports_modules_of_its_folder(process_server, tmp_path):
    """The script is `__main__`, can import a module of its folder, and can fork."""
    (tmp_path / "beside.py").write_text("ANSWER = 42")
    (tmp_path / "script.py").write_text(
        "import os, sys, beside\n"
        "if not os.fork(): os._exit(beside.ANSWER)\n"
        "if __name__ == '__main__': print(os.waitstatus_to_exitcode(os.wait()[1]), sys.argv)"
    )
    for run in (subprocess.run, process_server.run):
        done = run([sys.executable, tmp_path / "script.py", "x"], capture_output=True, text=True, check=True)
        assert done.stdout == f"42 {[str(tmp_path / 'script.py'), 'x']}\n"


def test_forked_processes_have_separate_randomness(process_server):
    """Each process has different random numbers, ids and orders of trio's tasks."""
    code = "import random, uuid, trio; print(random.random(), uuid.uuid4(), trio._core._run._r.random())"
    output = {
        process_server.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        for _ in range(3)
    }
    words = [word for line in output for word in line.split()]
    assert len(set(words)) == 9


def test_forked_processes_are_children_of_the_server(process_server):
    """The forked processes are other processes, and children of the server."""
    code = "import os; print(os.getpid(), os.getppid())"
    first, second = (
        process_server.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
        for _ in "ab"
    )
    assert len({str(os.getpid()), first[0], second[0], first[1]}) == 4
    assert first[1] == second[1]
