"""A fake of Google Cloud's metadata server, of one host."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATH = "/computeMetadata/v1/instance/attributes/"


@contextlib.contextmanager
def serving(attributes):
    """Serves the attributes, name -> text, on loopback; yields HOST:PORT for GCE_METADATA_IP.

    As the real one it refuses requests without the header that only programs send.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.removeprefix(PATH)
            if self.headers.get("Metadata-Flavor") != "Google":
                self.answer(403, "Missing Metadata-Flavor:Google header.")
            elif name in attributes:
                self.answer(200, attributes[name])
            else:
                self.answer(404, "Not Found")

        def answer(self, code, text):
            self.send_response(code)
            self.send_header("Metadata-Flavor", "Google")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
