"""Fast processes for tests: forks of one interpreter that has already imported actgent.

    test process --- request, pipes ---> server (this file, run as a script) --- fork ---> life
                 <-- pid, exit code ----

A forked process (a "life") has separate streams, environment, folder and arguments, and the signal handlers of a
new interpreter. The fork returns from the loop of the server before it runs code. So Python ends the process as
usual: threads are joined, `atexit` functions are called, files are flushed. Only modules are not torn down, because
this costs 100 ms of CPU time in each process: `end_early` runs instead, as the last `atexit` function.
Variables that an interpreter reads at its start (`PYTHONIOENCODING`, `PYTHONHASHSEED`) have no effect: tests of
these start a real interpreter.
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import types
from pathlib import Path

PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL
LARGEST = 1 << 17
"""Maximum bytes of a request, which includes code and environment."""


# --- in the test process ---------------------------------------------------------------------


class ForkServer:
    """A server that forks processes, with `run` and `popen` as in `subprocess`, for commands of this interpreter.

    A command is `[sys.executable, "-c", code, ...]`, `[sys.executable, script, ...]` or `["actgent", ...]`.
    """

    def __init__(self):
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])

    def close(self):
        """Stop the server. Its forked processes continue, as children of any process that ends."""
        self._control.close()
        self._process.wait()

    def popen(self, command, **options):
        """Start a forked process."""
        return Life(self._control, [str(word) for word in command], **options)

    def run(
        self,
        command,
        *,
        input=None,  # noqa: A002 - the name of subprocess
        capture_output=False,
        check=False,
        timeout=None,
        **options,
    ):
        """Run a forked process to its end."""
        if input is not None:
            options["stdin"] = PIPE
        if capture_output:
            options["stdout"] = options["stderr"] = PIPE
        with self.popen(command, **options) as life:
            try:
                out, err = life.communicate(input, timeout)
            except BaseException:
                life.kill()
                raise
        done = subprocess.CompletedProcess(life.args, life.returncode, out, err)
        if check:
            done.check_returncode()
        return done


class Life:
    """A process that the server forked, with the methods of `subprocess.Popen`."""

    def __init__(
        self, control, args, *, stdin=None, stdout=None, stderr=None, text=False, env=None, cwd=None
    ):
        self.args, self.returncode = args, None
        self._lock = threading.Lock()
        with contextlib.ExitStack() as theirs:
            ours = [_end(given, number, theirs) for number, given in enumerate((stdin, stdout, stderr))]
            self._status, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.enter_context(other)
            request = {"args": args, "env": dict(os.environ if env is None else env)}
            request["cwd"] = os.fspath(cwd or Path.cwd())
            fds = [fd for fd, _ in ours]
            request["closed"] = [number for number, fd in enumerate(fds) if fd is None]
            sent = [other.fileno(), *(fd for fd in fds if fd is not None)]
            socket.send_fds(control, [json.dumps(request).encode()], sent)
        self.stdin, self.stdout, self.stderr = (
            _file(fd, mode, text) for (_, fd), mode in zip(ours, "wrr", strict=True)
        )
        told, pidfds, _, _ = socket.recv_fds(self._status, 64, 1)
        self._polled = select.poll()
        self._polled.register(self._status, select.POLLIN)
        self.pid, self._pidfd = int(told), pidfds[0]

    def poll(self):
        """Return the exit code, or None if the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(timeout=0)
        return self.returncode

    def wait(self, timeout=None):
        """Wait until the process ends. Return its exit code."""
        with self._lock:
            if self.returncode is None:
                if not self._polled.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired(self.args, timeout)
                self.returncode = int(self._status.recv(64))
                self._status.close()
                os.close(self._pidfd)
        return self.returncode

    def send_signal(self, number):
        """Send a signal to the process unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self):
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, said=None, timeout=None):
        """Write to the process, read its complete output, and wait for its end."""
        read = {}

        def drain(stream):
            with stream:
                read[stream] = stream.read()

        readers = [
            threading.Thread(target=drain, args=[each], daemon=True)
            for each in (self.stdout, self.stderr)
            if each
        ]
        for reader in readers:
            reader.start()
        if self.stdin:
            with contextlib.suppress(BrokenPipeError):
                if said is not None:
                    self.stdin.write(said)
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return read.get(self.stdout), read.get(self.stderr)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self.wait()


def _end(given, number, theirs):
    """Return the process's end of a standard stream, and the server's end if the stream is a pipe."""
    if given == PIPE:
        read, write = os.pipe()
        mine, other = (write, read) if number == 0 else (read, write)
        theirs.callback(os.close, other)
        return other, mine
    if given == DEVNULL:
        fd = os.open(os.devnull, os.O_RDWR)
        theirs.callback(os.close, fd)
        return fd, None
    if given is None:
        return (number if _is_open(number) else None), None
    return (given if isinstance(given, int) else given.fileno()), None


def _is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _file(fd, mode, text):
    return None if fd is None else open(fd, mode if text else mode + "b", -1 if text or mode == "r" else 0)  # noqa: PTH123


# --- in the server ---------------------------------------------------------------------------


def serve(control):
    """Fork a process for each request.

    Return the request and the file descriptors in each forked process. Return None in the server when it is closed.
    """
    with selectors.DefaultSelector() as waiting:
        waiting.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj is not control:
                    waiting.unregister(key.fileobj)
                    _bury(key.fileobj, *key.data)
                    continue
                data, fds, _, _ = socket.recv_fds(control, LARGEST, 4)
                if not data:
                    return None
                request = json.loads(data)
                pid = os.fork()
                if not pid:
                    return request, fds[1:]
                pidfd = os.pidfd_open(pid)
                status = socket.socket(fileno=fds[0])
                with contextlib.suppress(BrokenPipeError):
                    socket.send_fds(status, [str(pid).encode()], [pidfd])
                for fd in fds[1:]:
                    os.close(fd)
                waiting.register(pidfd, selectors.EVENT_READ, (pid, status))


THIRD_PARTY = ("cattrs", "cyclopts.help", "encodings.idna", "genai_prices", "hypercorn.trio", "jinja2", "logging.config", "rich.markdown", "wsgiref.handlers")  # fmt: skip
"""Modules that actgent imports inside functions."""
LEFT_OUT = ("__main__", ".pytest_plugin", "._anthropic_sdk_import")
"""Ends of names that are not imported: commands print a warning where pytest is loaded, and few tests use 60 MB of Anthropic's SDK."""


def import_all():
    """Import all modules that the forked processes may need, and end every thread, because a fork would lose it.

    A module that is missing is left out, because the tests of the core run without the other parts.
    """
    package = importlib.import_module("actgent")
    ours = (each.name for each in pkgutil.walk_packages(package.__path__, "actgent."))
    for name in (*(each for each in ours if not each.endswith(LEFT_OUT)), *THIRD_PARTY):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()


def _bury(pidfd, pid, status):
    _, how = os.waitpid(pid, 0)
    with status, contextlib.suppress(BrokenPipeError):
        status.send(str(os.waitstatus_to_exitcode(how)).encode())
    os.close(pidfd)


# --- in a forked process ------------------------------------------------------------------------------


def become(request, fds):
    """Set streams, signal handlers, environment and folder as in a new interpreter."""
    for number in range(3):
        if number in request["closed"]:
            with contextlib.suppress(OSError):
                os.close(number)
    for number, fd in zip((n for n in range(3) if n not in request["closed"]), fds, strict=True):
        os.dup2(fd, number, inheritable=True)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.stdin, sys.stdout, sys.stderr = (_stream(n, request["closed"]) for n in range(3))
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    importlib.import_module(
        "trio._core._run"
    )._r.seed()  # without a new seed, all processes would shuffle their tasks alike


def _stream(number, closed):
    if number in closed:
        return None
    mode, errors = ("r", "strict") if number == 0 else ("w", "backslashreplace" if number == 2 else "strict")
    stream = open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
    assert isinstance(stream, io.TextIOWrapper)
    stream.reconfigure(line_buffering=number == 2 or stream.isatty())
    return stream


exit_code = None
"""Exit code of a forked process. None: Python ends the process, as in the server and after a KeyboardInterrupt."""


def end_early():
    """End a forked process after its other `atexit` functions, without the teardown of its modules."""
    if exit_code is None:
        return
    if (names := vars(sys.modules["__main__"])) is not globals():
        names.clear()  # closes and flushes files
    gc.collect()
    with contextlib.suppress(AttributeError, ValueError):  # the stream is missing or closed
        sys.stderr.flush()
    try:
        sys.stdout.flush()
    except (AttributeError, ValueError):
        os._exit(exit_code)
    except OSError:
        return  # Python reports the error and exits with 120
    os._exit(exit_code)


def live(args):
    """Run the code, script or command of a request as `__main__`, and note its exit code."""
    global exit_code  # noqa: PLW0603 - `end_early` gets no arguments
    try:
        run_main(args)
        exit_code = 0
    except SystemExit as ended:
        exit_code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
    except Exception:
        exit_code = 1
        raise


def run_main(args):
    """Run the code, script or command of a request as `__main__`."""
    first, *rest = args
    if Path(first).name == "actgent":
        sys.argv = args
        importlib.import_module("actgent.cli").main()
    elif rest[0] == "-c":
        sys.argv = ["-c", *rest[2:]]
        sys.path.insert(0, "")
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(rest[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = rest
        sys.path.insert(0, str(Path(rest[0]).parent))
        # Scripts import modules of other test folders, e.g. `tests.clusters`.
        sys.path.append(str(Path(__file__).parents[1]))
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    atexit.register(end_early)  # The first registered function runs last.
    del sys.path[0]
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the tests, which end the server by its socket
    import_all()
    wish = serve(socket.socket(fileno=int(sys.argv[1])))
    if wish is not None:
        become(*wish)
        live(wish[0]["args"])
