"""`RequestsTool` calls an HTTP API: the model supplies the parts of its URL, its query, its headers and its body.

Document: Core Components, 3. Tools, Three implementation patterns.

Differs: The class is named `HTTPTool`, with `url=`, `query=`, `headers=` and `body=`. `allow=` must name an address
that is not public, so that no model can reach the internal network. `create_api_tool` is `api_tool`.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import trio

from actgent import APIKey, HTTPTool, ScriptedLLM, StepsAgent

seen = []


class API(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        seen.append((self.path, self.headers["X-API-Key"], json.loads(body)))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"ordered": true}')

    def log_message(self, *args):
        pass


async def main(url: str) -> None:
    tool = HTTPTool(
        "order",
        f"{url}/shops/{{shop}}/orders",
        "POST",
        description="Order something.",
        query={"fast": {"type": "boolean"}},
        body={"type": "object", "properties": {"item": {"type": "string"}}},
        auth=APIKey("secret"),
        allow=["127.0.0.1"],
    )
    parameters = {"shop": "turin", "fast": True, "body": {"item": "bicycle"}}
    step = {"tool_calls": [{"id": "1", "tool_name": "order", "parameters": parameters}]}
    llm = ScriptedLLM([json.dumps(step), json.dumps({"final_answer": "It is ordered."})])
    async with StepsAgent("clerk", llm=llm, tools=[tool]) as agent:
        assert str(await agent.run("Order a bicycle.")) == "It is ordered."
    assert "ordered" in str(llm.chats[1].messages)
    assert seen == [("/shops/turin/orders?fast=true", "secret", {"item": "bicycle"})], seen


server = ThreadingHTTPServer(("127.0.0.1", 0), API)
threading.Thread(target=server.serve_forever, args=(0.01,)).start()
try:
    trio.run(main, f"http://127.0.0.1:{server.server_port}")
finally:
    server.shutdown()
    server.server_close()
