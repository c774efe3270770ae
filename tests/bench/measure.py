"""Measurement: clocks, memory, speed of the machine, and waits without a clock."""

import gc
import os
import resource
import threading
import time
from pathlib import Path

import attrs
import trio

Figures = dict[str, float]

REFERENCE_S = 0.0078
"""Seconds that `calibrate` takes on the undisturbed machine of docs/benchmarks.md."""


def calibrate() -> float:
    """Return the seconds of a small fixed loop, which measures the speed of the machine at this moment."""
    return min(_fixed_loop() for _ in range(3))


def _fixed_loop() -> float:
    started = time.perf_counter()
    table: dict[int, int] = {}
    for number in range(200_000):
        table[number & 1023] = number
    return time.perf_counter() - started


@attrs.define
class Stopwatch:
    """CPU and wall time since its creation."""

    cpu: float = attrs.field(factory=time.process_time)
    wall: float = attrs.field(factory=time.perf_counter)

    def cpu_us(self, count: int) -> float:
        """Return CPU microseconds for each of `count` operations."""
        return (time.process_time() - self.cpu) / count * 1e6

    def wall_s(self) -> float:
        return time.perf_counter() - self.wall


class Countdown:
    """An event that is set after `count` calls. A call costs a comparison and an addition."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.done = trio.Event()

    def tick(self, *_: object) -> None:
        self.left -= 1
        if not self.left:
            self.done.set()


def percentile(values: list[float], share: float) -> float:
    """The smallest value that `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def windows(marks: list[float], grown: int) -> Figures:
    """Return the CPU of the first and of the last 50 turns, from the times between turns."""
    size = min(50, len(marks) - 1)
    first_us = (marks[size] - marks[0]) / size * 1e6
    last_us = (marks[-1] - marks[-1 - size]) / size * 1e6
    growth = last_us / first_us
    return {"first_us": first_us, "last_us": last_us, "growth": growth, "rss_turn": grown / (len(marks) - 1)}


def rss() -> int:
    """Return the resident bytes of this process after a garbage collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def peak_rss() -> int:
    """Return the maximum of resident bytes of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def leftovers() -> tuple[int, int, int]:
    """Return the numbers of tasks, file descriptors and threads, without the watchdog, which ends later. Call it in `trio.run`."""
    tasks = trio.lowlevel.current_statistics().tasks_living
    threads = [thread for thread in threading.enumerate() if "watchdog" not in thread.name]
    return tasks, len(os.listdir("/proc/self/fd")), len(threads)  # noqa: PTH208 - names are enough


def expect(*, seen: object, wanted: object, what: str) -> None:
    """Raise an error if the result of a run is wrong, because its figures would be meaningless."""
    if seen != wanted:
        raise SystemExit(f"wrong result, {what}: {seen!r} instead of {wanted!r}")


def short(number: int) -> str:
    """Return a distinct message of 40 characters."""
    return f"{number:08d} the quick brown fox jumps over"[:40].ljust(40, ".")


def long(number: int) -> str:
    """Return a distinct message of 400 characters."""
    return short(number) * 10


ANSWER = "This is an answer of forty characters..."
CHUNK = "chunk"
SYSTEM = "You are a helpful assistant."
