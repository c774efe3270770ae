"""Connections that are refused, cut, held up, encrypted or cancelled: each call ends, and tells why."""

import ssl
from pathlib import Path

import pytest
import trio
import trio.testing

from actgent.cluster.amqp import open_connection, parse_broker
from actgent.cluster.amqp.connection import Connection
from actgent.errors import BrokerLost, ConfigurationError


def at(port, login="guest:guest", vhost=""):
    return parse_broker(f"amqp://{login}@127.0.0.1:{port}/{vhost}")


async def unused_port():
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    return port


async def test_the_next_host_is_asked_where_one_does_not_answer(broker):
    """Whichever is asked first."""
    port = await unused_port()
    for _ in range(6):
        async with open_connection(parse_broker(f"amqp://127.0.0.1:{port},127.0.0.1:5672")) as connection:
            assert connection.agreed.place == "127.0.0.1:5672"


async def test_no_host_answers():
    """The error names all of them, why each failed and what to do, and no password."""
    ports = [await unused_port() for _ in range(2)]
    address = parse_broker(f"amqp://ada:s3cret@127.0.0.1:{ports[0]},localhost:{ports[1]}")
    with pytest.raises(BrokerLost) as error:
        async with open_connection(address):
            pass
    said = str(error.value)
    assert all(str(port) in said for port in ports)
    assert "s3cret" not in said
    assert said.count("Connection refused") >= len(ports)
    assert "look whether RabbitMQ runs there" in said


@pytest.mark.parametrize(("login", "vhost"), [("guest:s3cret", ""), ("guest:guest", "s3cret-place")])
async def test_who_is_not_let_in_is_told_so(broker, login, vhost):
    """Without the password."""
    with pytest.raises(ConfigurationError, match="does not let user 'guest'") as error:
        async with open_connection(at(5672, login, vhost)):
            pass
    assert ("s3cret" in str(error.value)) == bool(vhost)


async def test_an_error_of_the_block_comes_out_as_it_is(broker):
    """Not in a group, and the connection is closed."""
    with pytest.raises(ZeroDivisionError):
        async with open_connection(parse_broker(broker)) as connection:
            raise ZeroDivisionError
    with pytest.raises(BrokerLost):
        await connection.open_channel()


async def test_a_cut_connection_fails_all_who_wait(relay, new_name):
    """And what was not acknowledged is delivered again."""
    name, heard = new_name(), []

    async def expect_loss(call):
        with pytest.raises(BrokerLost) as error:
            await call
        heard.append(str(error.value))

    async with open_connection(at(relay.port)) as connection:
        channel = await connection.open_channel(prefetch=1, confirms=True)
        await channel.declare_queue(name)
        await channel.publish(name, b"x")
        async with await channel.consume(name) as consumer, trio.open_nursery() as nursery:
            with trio.fail_after(30):
                held = await anext(consumer)
            relay.hold()
            nursery.start_soon(expect_loss, anext(consumer))
            nursery.start_soon(expect_loss, channel.publish(name, b"y"))
            nursery.start_soon(expect_loss, channel.declare_queue(name))
            await trio.testing.wait_all_tasks_blocked()
            relay.cut()
        assert len(heard) == 3
        held.acknowledge()  # nothing
        with pytest.raises(BrokerLost):
            await connection.open_channel()
    relay.flows.set()
    async with open_connection(at(relay.port)) as connection:
        channel = await connection.open_channel(prefetch=5)
        async with await channel.consume(name) as consumer:
            with trio.fail_after(30):
                again = await anext(consumer)
            assert (again.body, again.redelivered) == (b"x", True)


async def test_a_broker_that_says_nothing_is_lost(relay):
    """After two heartbeats; the block goes on meanwhile."""
    async with open_connection(at(relay.port), heartbeat=1) as connection:
        relay.hold()
        with trio.fail_after(30):
            assert "has said nothing for 2 s" in await connection.wait_lost()


async def test_heartbeats_keep_a_connection(relay):
    """Longer than either side would wait for a word."""
    async with open_connection(at(relay.port), heartbeat=1) as connection:
        with trio.move_on_after(5):
            pytest.fail(await connection.wait_lost())
        await connection.open_channel()


async def test_a_broker_that_does_not_greet_is_left(nursery, monkeypatch):
    """It accepts, and says nothing."""
    monkeypatch.setattr("actgent.cluster.amqp.opening.CONNECTING", 0.2)

    async def keep(stream):
        await trio.sleep_forever()

    listeners = await nursery.start(trio.serve_tcp, keep, 0)
    port = listeners[0].socket.getsockname()[1]
    with pytest.raises(BrokerLost, match="has not answered within"):
        async with open_connection(at(port)):
            pass


# --- cancelled anywhere --------------------------------------------------------------------------


class CancelAt(trio.abc.Instrument):
    """Cancels a scope when a task has been run for the n-th time."""

    def __init__(self, scope, step):
        self.scope, self.left = scope, step
        self.task = trio.lowlevel.current_task()

    def before_task_step(self, task):
        if task is self.task:
            self.left -= 1
            if self.left == 0:
                self.scope.cancel()


async def cancelled_at(step, fn, *args):
    """Run something that is cancelled at its n-th step; returns whether it was."""
    with trio.CancelScope() as scope:
        instrument = CancelAt(scope, step)
        trio.lowlevel.add_instrument(instrument)
        try:
            await fn(*args)
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return scope.cancelled_caught


async def work(connection, name):
    """Each call that a channel has."""
    channel = await connection.open_channel(prefetch=3, confirms=True)
    try:
        await channel.declare_queue(name)
        for _ in range(3):
            await channel.publish(name, b"x" * 200_000)
        async with await channel.consume(name) as consumer:
            for _ in range(2):
                (await anext(consumer)).acknowledge()
        await channel.delete_queue(name)
    finally:
        channel.close()


async def test_a_cancellation_anywhere_leaves_the_connection_sound(connection, new_name):
    """All goes on with other channels, and no number of one is lost."""
    name = new_name()
    with trio.fail_after(120):
        step = 1
        while await cancelled_at(step, work, connection, name):
            step += 1
            await work(connection, name)
    assert step > 8
    assert connection.is_writable
    with trio.fail_after(60):
        while (
            channel := await connection.open_channel()
        ).number > 3:  # the broker has not heard of all that were closed
            channel.close()
            await trio.sleep(0.01)


def open_files():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_a_cancellation_of_the_opening_leaves_nothing_open(broker):
    """No socket, at whatever step."""

    async def open_and_leave():
        async with open_connection(parse_broker(broker)) as connection:
            await connection.open_channel()

    await open_and_leave()
    before = open_files()
    with trio.fail_after(60):
        step = 1
        while await cancelled_at(step, open_and_leave):
            step += 1
    assert step > 8
    assert open_files() == before


# --- TLS -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("trusted", ["it", "another authority", "another name"])
async def test_certificates_are_checked(open_relay, tmp_path, write_certificates, trusted):
    """A broker with a certificate of the authority that is named is let in, and nobody else gets the password."""
    ca, cert, key = write_certificates(tmp_path, "127.0.0.1" if trusted != "another name" else "mq1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(cert, key)
    url = "amqps://guest:guest@127.0.0.1:{}/" + (
        f"?cacertfile={ca}" if trusted != "another authority" else ""
    )
    async with open_relay(tls) as relay:
        address = parse_broker(url.format(relay.port))
        if trusted == "it":
            async with open_connection(address) as connection:
                assert isinstance(connection, Connection)
                await connection.open_channel()
        else:
            with pytest.raises(BrokerLost, match="its certificate is not trusted"):
                async with open_connection(address):
                    pass
