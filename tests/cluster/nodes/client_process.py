"""A client as a process of its own that may be killed: `client_process.py URL OPTIONS SESSION COUNT`, with those of `connect` as JSON.

It says COUNT messages, each with the id that it has in each run, and then that it is READY; so it may be started again.
"""

import json
import sys

import trio

from actgent import ServerUnreachable, connect

PATIENCE = 120


async def say_all(url, options, session_id, count):
    async with connect(url, retry_timeout=PATIENCE, **json.loads(options)) as client:
        session = await client.agent("clerk").ensure_session("ada", session_id)
        for number in range(int(count)):
            await session.chat(f"{session_id}-{number}", message_id=f"m{number}")
            await trio.sleep(0.2)


async def main():
    while True:
        try:
            await say_all(*sys.argv[1:])
        except ServerUnreachable:  # it was not there when we came
            await trio.sleep(0.5)
        else:
            break
    sys.stdout.write("READY\n")


if __name__ == "__main__":
    trio.run(main)
