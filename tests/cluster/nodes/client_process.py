"""A client process that a test may kill: `client_process.py URL OPTIONS SESSION COUNT`.

OPTIONS are the options of `connect` as JSON. The client sends COUNT messages and then prints READY. The
message ids are the same in each run, so the process can be restarted.
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
        except ServerUnreachable:  # the server was not reachable at the start
            await trio.sleep(0.5)
        else:
            break
    sys.stdout.write("READY\n")


if __name__ == "__main__":
    trio.run(main)
