"""The program that the suite starts as the client of a scenario. The test process runs the client, for speed.

Arguments: the path of the test's socket, and the URL of the suite's server. The exit code is that of the
client.
"""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    known = {key: value for key, value in os.environ.items() if key.startswith("MCP_CONFORMANCE_")}
    connection.sendall(json.dumps({"url": sys.argv[-1], **known}).encode() + b"\n")
    failure = connection.makefile(encoding="utf-8").read()
sys.stderr.write(failure)
sys.exit(1 if failure else 0)
