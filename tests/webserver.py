"""A web server on this machine, for downloads."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], object]


def not_found(request: BaseHTTPRequestHandler) -> None:
    request.send_error(404)


class Server:
    """Answers each path as it was told to, any other with 404."""

    def __init__(self, port: int) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        self.home = f"http://127.0.0.1:{port}/"

    def give(self, path: str, answer: Answer) -> str:
        """Returns the address."""
        self.answers["/" + path] = answer
        return self.home + path


def sending(content: bytes, promised: int | None = None) -> Answer:
    """All of it; `promised` bytes are announced, as many as there are by default."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(content) if promised is None else promised))
        request.end_headers()
        request.wfile.write(content)

    return answer


@contextmanager
def serving() -> Iterator[Server]:
    """A server as long as one is inside."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            served.answers.get(self.path, not_found)(self)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:  # of clients that hang up
            pass

    with Quiet(("127.0.0.1", 0), Handler) as http:
        served = Server(http.server_address[1])
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield served
        finally:
            http.shutdown()
            thread.join()
