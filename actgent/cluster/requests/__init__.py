"""Requests of a node's queues: looked at where a node may have died of them, worked at, and answered."""

from .answering import MOST, Requests, workers_of
from .redelivery import TAKEN, TRIED
from .telling import Telling, send_back

__all__ = ["MOST", "TAKEN", "TRIED", "Requests", "Telling", "send_back", "workers_of"]
