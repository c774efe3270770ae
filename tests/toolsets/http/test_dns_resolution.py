"""Host name lookups with slow resolvers."""

import socket
import threading

import pytest
import trio

from actgent.errors import AddressBlocked
from actgent.toolsets.http.internal_address_blocking import (
    LOOKUP_THREADS,
    LOOKUP_TIMEOUT_SECONDS,
    Guard,
    resolve_host,
)


class SlowNames:
    """A system resolver that answers when the test releases it."""

    def __init__(self):
        self.begun = 0
        self.answer = threading.Event()
        self.real = socket.getaddrinfo

    def __call__(self, host, port, *args, flags=0, **options):
        if flags & socket.AI_NUMERICHOST:
            return self.real(host, port, *args, flags=flags, **options)
        self.begun += 1
        self.answer.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", port))]


@pytest.fixture
def names(monkeypatch):
    slow = SlowNames()
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    yield slow
    slow.answer.set()


async def test_slow_lookups_use_no_default_thread(names, autojump_clock):
    """A hundred lookups use a bounded set of their own threads and time out. Default threads stay free."""
    failed = []

    async def look(number):
        with pytest.raises(OSError, match="longer than 10 s") as caught:
            await Guard().addresses(f"host{number}.example", 80)
        failed.append(caught.value)

    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(look, number)
    assert trio.current_time() - started == pytest.approx(LOOKUP_TIMEOUT_SECONDS)
    assert len(failed) == 100
    assert 0 < names.begun <= LOOKUP_THREADS
    assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
    assert await trio.to_thread.run_sync(int) == 0


async def test_a_lookup_can_be_cancelled(names):
    """A lookup is cancelled at once while the resolver blocks."""
    with trio.fail_after(20), trio.move_on_after(0.05) as scope:
        await resolve_host("slow.example", 80)
    assert scope.cancelled_caught


async def test_addresses_need_no_resolver(names):
    """IP addresses in any notation need no lookup and are still checked."""
    assert await resolve_host("127.0.0.1", 80) == ["127.0.0.1"]
    assert await resolve_host("0x7f.1", 80) == ["127.0.0.1"]
    assert await resolve_host("::1", 80) == ["::1"]
    with pytest.raises(AddressBlocked):
        await Guard().addresses("2130706433", 80)
    assert names.begun == 0


async def test_each_resolved_address_is_checked(names):
    """Each resolved address of a name is checked."""
    names.answer.set()
    with pytest.raises(AddressBlocked):
        await Guard().addresses("inside.example", 80)
    assert await Guard(["inside.example"]).addresses("inside.example", 80) == ["10.0.0.1"]
