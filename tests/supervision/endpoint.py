"""Web servers on this machine that answer, fail or hang."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Endpoint:
    """Keeps what it was sent; `with` starts and ends it.

    Args:
        code: Its answer; 0 for none at all.
        location: Where a redirect points to.
        drips: Whether the answer never ends, with a byte of a header every 50 ms.
    """

    def __init__(self, code: int = 200, location: str = "", drips: bool = False) -> None:
        self.posted: list[tuple[str, str | None]] = []
        self.posts: list[dict[str, Any]] = []
        self.gets: list[str] = []
        self.came = 0
        self._over = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                endpoint.came += 1
                endpoint.posted.append((self.path, self.headers["Authorization"]))
                if code:
                    endpoint.posts.append(json.loads(content))
                self.answer()

            def do_GET(self) -> None:
                endpoint.came += 1
                endpoint.gets.append(self.path)
                self.answer()

            def answer(self) -> None:
                if not code:
                    endpoint._over.wait(60)
                    return
                if drips:
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Drip: ")
                    with contextlib.suppress(OSError):
                        while not endpoint._over.wait(0.05):
                            self.wfile.write(b"x")
                    return
                self.send_response(code)
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def address(self) -> str:
        """With something that must stay secret."""
        return f"http://127.0.0.1:{self._server.server_port}/hooks/SECRET?token=SECRET"

    def events(self) -> list[str]:
        return [post["title"].rpartition(": ")[2] for post in self.posts]

    def __enter__(self) -> "Endpoint":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *arguments: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
