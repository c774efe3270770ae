"""AMQP 0-9-1 on trio, as far as RabbitMQ and a cluster need it. pamqp reads and writes the frames. Needs the extra `cluster`.

Whatever is cancelled leaves its connection as it was, or closed: frames are only ever handed over whole.
"""

from .address import BrokerAddress, parse_broker
from .channel import Channel
from .connection import Connection
from .consuming import Consumer, Delivery
from .content import MAX_MESSAGE, Content
from .failures import ChannelClosed, ConsumerCancelled, NotConfirmed, Unroutable
from .opening import open_connection
from .publishing import Hearer

__all__ = [
    "MAX_MESSAGE",
    "BrokerAddress",
    "Channel",
    "ChannelClosed",
    "Connection",
    "Consumer",
    "ConsumerCancelled",
    "Content",
    "Delivery",
    "Hearer",
    "NotConfirmed",
    "Unroutable",
    "open_connection",
    "parse_broker",
]
