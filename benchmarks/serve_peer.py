"""sentence-transformers as a small FastAPI app, as many serve it today; see `benchmarks.serve`.

    python -m benchmarks.serve_peer --model=path/to/encoder

Requests are encoded one after the other, each in a thread; prints its URL when it is ready. Needs
the extras `serve` and `interop`.
"""

import base64
import socket
import threading
from typing import Any

import numpy as np
import uvicorn
from absl import app, flags
from fastapi import FastAPI

_MODEL = flags.DEFINE_string("model", None, "Folder of sentence-transformers.", required=True)


def create_app(model: Any) -> FastAPI:
    """POST /v1/embeddings of OpenAI, without its checks."""
    made, lock = FastAPI(), threading.Lock()

    @made.post("/v1/embeddings")
    def embeddings(body: dict[str, Any]) -> dict[str, Any]:
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        with lock:
            vectors = model.encode(texts, show_progress_bar=False)
        data = [
            {"index": n, "embedding": base64.b64encode(np.asarray(one, "<f4").tobytes()).decode()}
            for n, one in enumerate(vectors)
        ]
        return {"object": "list", "data": data}

    return made


def main(_: list[str]) -> None:
    """Serves until it is stopped."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(_MODEL.value, device="cpu")
    model.encode(["warm up"], show_progress_bar=False)
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"ready at http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(create_app(model), log_level="warning")).run([listener])


if __name__ == "__main__":
    app.run(main)
