"""Reader of the lines of a byte stream, for protocols over standard input and output."""

from collections.abc import AsyncGenerator

import trio

MAX_LINE_BYTES = 10 * 1024 * 1024
"""Maximum length of a line in bytes. Longer lines are discarded."""


async def read_lines(stream: trio.abc.ReceiveStream) -> AsyncGenerator[bytes | None, None]:
    """Yield the lines of a byte stream without line ends; None in place of a line that is longer than `MAX_LINE_BYTES`."""
    buffer, is_discarding = bytearray(), False
    async for chunk in stream:
        searched = len(buffer)
        buffer += chunk
        begin = 0
        while (end := buffer.find(b"\n", max(begin, searched))) >= 0:
            if is_discarding:
                is_discarding = False
            else:
                yield bytes(buffer[begin:end]) if end - begin <= MAX_LINE_BYTES else None
            begin = end + 1
        del buffer[:begin]
        if len(buffer) > MAX_LINE_BYTES and not is_discarding:
            is_discarding = True
            yield None
        if is_discarding:
            buffer.clear()
    if buffer and not is_discarding:
        yield bytes(buffer)
