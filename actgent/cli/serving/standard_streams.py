"""Standard input and output as the streams of a protocol."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import trio


@contextmanager
def protocol_streams() -> Iterator[tuple[trio.abc.ReceiveStream, trio.abc.SendStream]]:
    """Yield standard input and output as byte streams for a protocol.

    Descriptors 0 and 1 become /dev/null and standard error, so that output of tools and their child processes does not mix
    with the protocol.
    """
    streams = trio.lowlevel.FdStream(os.dup(0)), trio.lowlevel.FdStream(os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    try:
        yield streams
    finally:
        for stream in streams:
            stream.close()
