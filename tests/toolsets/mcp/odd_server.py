"""An MCP server without an SDK that answers calls with the first argument, in which `%ID%` is the id of the request.

The second argument has results of other methods as JSON. The server exits after an answer without a final newline.
"""

import json
import os
import sys

ANSWER = os.fsencode(sys.argv[1])
INFO = {"name": "odd", "version": "1"}
RESULTS = {
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": INFO},
    "tools/list": {"tools": [{"name": "act", "inputSchema": {"type": "object"}}]},
    **json.loads(sys.argv[2]),
}

for line in sys.stdin:
    message = json.loads(line)
    method, number = message.get("method"), message.get("id")
    if method == "tools/call":
        written = ANSWER.replace(b"%ID%", str(number).encode())
    elif number is None:
        continue
    else:
        known = RESULTS.get(method)
        rest = {"error": {"code": -32601, "message": "unknown"}} if known is None else {"result": known}
        written = json.dumps({"jsonrpc": "2.0", "id": number, **rest}).encode() + b"\n"
    sys.stdout.buffer.write(written)
    sys.stdout.buffer.flush()
    if not written.endswith(b"\n"):
        sys.exit()
