"""Use agents in synchronous views, as in Django or Flask: a WSGI application whose agents run on trio, behind a portal.

The views run in threads of the server, and any number of threads may call the portal. A server that forks (gunicorn,
uwsgi) opens one portal in each process, after the fork. As a script, the program sends two requests and exits.
"""

import threading
import urllib.request
from collections.abc import Iterator
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from actgent import BareAgent, PortalAgent, ScriptedLLM, Token, open_portal

agent = BareAgent("clerk", llm=ScriptedLLM(["Good morning, how can I help?"], repeat=True, chunk=8))


def ask(clerk: PortalAgent, question: str) -> Iterator[bytes]:
    """View that returns the whole answer."""
    yield str(clerk.run(question)).encode()


def stream(clerk: PortalAgent, question: str) -> Iterator[bytes]:
    """View that streams the answer. If the client disconnects, the block exits, and the turn is cancelled."""
    with clerk.stream(question) as events:
        for event in events:
            if isinstance(event, Token):
                yield event.text.encode()


class Service:
    """Dispatch a request to its view (the WSGI application)."""

    def __init__(self, clerk: PortalAgent) -> None:
        self.clerk = clerk

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        view = {"/ask": ask, "/stream": stream}[environ["PATH_INFO"]]
        start_response("200 OK", [("Content-Type", "text/plain; charset=utf-8")])
        return view(self.clerk, parse_qs(environ["QUERY_STRING"])["question"][0])


class Server(ThreadingMixIn, WSGIServer):
    """Server with one thread per request."""


class Quiet(WSGIRequestHandler):
    """Request handler that logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    with open_portal() as portal:
        service = Service(portal.start(agent))
        with make_server("127.0.0.1", 0, service, server_class=Server, handler_class=Quiet) as server:
            serving = threading.Thread(target=server.serve_forever)
            serving.start()
            for path in ("ask", "stream"):
                url = f"http://127.0.0.1:{server.server_port}/{path}?question=Hello"
                with urllib.request.urlopen(url) as answer:
                    print(f"{path}: {answer.read().decode()}")
            server.shutdown()
            serving.join()


if __name__ == "__main__":
    main()
