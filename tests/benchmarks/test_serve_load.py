"""The load of benchmarks.serve: requests without an answer are counted, and end nothing."""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks import serve_load


class Handler(BaseHTTPRequestHandler):
    """Answers 'good', refuses 'bad', and hangs up on all else."""

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if b"good" in body or b"bad" in body:
            self.send_response(200 if b"good" in body else 429)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")


def test_a_lost_request_is_counted():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        texts = ["good", "bad", "gone", "good", "gone"]
        seconds, lost = asyncio.run(serve_load.load(url, texts, 2))
        server.shutdown()
    assert (len(seconds), lost) == (2, 3)
    assert asyncio.run(serve_load.load(url, texts, 2)) == ([], 5)
