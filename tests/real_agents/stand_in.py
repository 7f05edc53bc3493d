"""A stand-in for a model: an HTTP server on 127.0.0.1 that answers with the steps of a script.

It has no memory: how many results of tools a request carries says which step is next, so that a
request that is sent twice gets the same answer twice. A request that is no turn of the
conversation (a title, a count of tokens) is answered with a few words.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from tests.real_agents.script import FAREWELL, Call


class Wire(Protocol):
    """One protocol between agent and model; each of the modules here is one."""

    def is_turn(self, path: str, request: dict[str, Any]) -> bool: ...
    def results(self, request: dict[str, Any]) -> list[Any]: ...
    def tool_call(self, number: int, call: Call) -> Iterable[bytes]: ...
    def text(self, words: str) -> Iterable[bytes]: ...
    def whole(self, words: str) -> dict[str, Any]: ...


class StandIn:
    """The server's state: what it answers, and what it was asked, for the failure's message."""

    def __init__(self, wire: Wire, calls: Sequence[Call]) -> None:
        self.wire = wire
        self.calls = calls
        self.url = ""
        #: What the agent's tools answered, as the newest turn has it.
        self.results: list[Any] = []
        self.asked: list[str] = []

    def answer(self, path: str, request: dict[str, Any]) -> Iterable[bytes]:
        if not self.wire.is_turn(path, request):
            return self.wire.text("A title")
        self.results = self.wire.results(request)
        step = len(self.results)
        if step < len(self.calls):
            return self.wire.tool_call(step, self.calls[step])
        return self.wire.text(FAREWELL)

    def account(self) -> str:
        """What it was asked and what the tools answered."""
        results = [json.dumps(result)[:600] for result in self.results]
        return "\n".join(["the model was asked:", *self.asked, "the tools answered:", *results])


@contextmanager
def stand_in(wire: Wire, calls: Sequence[Call]) -> Iterator[StandIn]:
    """A stand-in that listens while the block runs."""
    model = StandIn(wire, calls)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(model))
    model.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(model: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = json.loads(body) if body else {}
            path = self.path.partition("?")[0]
            model.asked.append(f"POST {self.path}")
            if request.get("stream") or "alt=sse" in self.path:
                self._send("text/event-stream", b"".join(model.answer(path, request)))
            else:
                self._send("application/json", json.dumps(model.wire.whole("A title")).encode())

        def do_GET(self) -> None:
            model.asked.append(f"{self.command} {self.path}")
            self._send("application/json", b'{"data": [], "models": []}')

        do_HEAD = do_GET

        def _send(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are in the account; nothing goes to stderr."""

    return Handler
