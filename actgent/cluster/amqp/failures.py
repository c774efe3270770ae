"""What a broker refuses. That it is lost is `BrokerLost`."""

from actgent.errors import ActgentError


class ChannelClosed(ActgentError):
    """The broker closed a channel, or the program did; its connection goes on."""

    def __init__(self, why: str, code: int = 0) -> None:
        self.code = code
        """The broker's number for the reason, such as 404 for a queue that is not there; 0 is that we closed it."""
        super().__init__(why, code)

    def __str__(self) -> str:
        return f"the channel is closed: {self.args[0]}"


class NotConfirmed(ActgentError):
    """The broker did not take a message, or cannot say that it did: its queue is full, or about to move. It may be sent again."""


class Unroutable(ActgentError):
    """No queue takes a message that was to have one."""


class ConsumerCancelled(ActgentError):
    """The broker takes a queue away from its consumer: it was deleted, or moves to another broker."""


class ProtocolError(Exception):
    """What came is not what AMQP says; the connection cannot go on."""
