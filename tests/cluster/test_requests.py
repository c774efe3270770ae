"""What a node does with a request whose answer nobody hears any more."""

import types

import pytest
import trio

from actgent.cluster.amqp import Unroutable
from actgent.cluster.requests import Requests
from actgent.cluster.wire import WireRequest


class Link:
    """A broker that has no queue for what is sent."""

    async def publish(self, *args, **options):
        await trio.lowlevel.checkpoint()
        raise Unroutable.__new__(Unroutable)


class Quarantine:
    async def wait(self, session_id):
        await trio.lowlevel.checkpoint()


class Delivery:
    """A request as the broker gave it; notes what becomes of it."""

    def __init__(self):
        self.properties = types.SimpleNamespace(reply_to="gone", headers={}, message_id="m")
        self.redelivered = False
        self.became = []

    def acknowledge(self):
        self.became.append("acknowledged")

    def requeue(self):
        self.became.append("given back")


class Application:
    """Answers from a nursery of its own, or not; or fails there."""

    def __init__(self, *, is_grouped, error=None):
        self.is_grouped, self.error = is_grouped, error

    async def answer(self, request, tell, gone):
        if not self.is_grouped:
            await self.say(tell)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.say, tell)

    async def say(self, tell):
        if self.error is not None:
            raise self.error
        await tell(200, b"{}", True)


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.parametrize(
    ("error", "becomes"), [(None, ["acknowledged"]), (ValueError("broken"), ["given back"])]
)
async def test_a_request_whose_asker_is_gone_is_not_given_back(
    is_grouped, error, becomes, caplog, autojump_clock
):
    """Or it would go round for ever; one that fails goes to the next node, also out of a nursery."""
    delivery = Delivery()
    async with trio.open_nursery() as nursery:
        application = Application(is_grouped=is_grouped, error=error)
        requests = Requests(Link(), application, Quarantine(), nursery.start_soon)
        requests.open()
        requests.take(delivery, WireRequest(id="1", verb="POST", path="/sessions/s/messages", owner="ada"))
    assert delivery.became == becomes
    assert ("request 1 failed" in caplog.text) == (error is not None)
    assert len(requests) == 0
