"""sentence-transformers as a small FastAPI app, as many serve it today; see `benchmarks.serve`.

    python -m benchmarks.serve_peer --model=path/to/encoder [--backend=onnx]

Requests are encoded one after the other, each in a thread; prints its URL when it is ready. Needs
the extras `serve` and `interop`. The backends `onnx` and `onnx_int8` need a Python with
`sentence-transformers[onnx]`, which allows older versions of transformers alone. `onnx_int8`
quantizes weights and, at run time, activations to 8 bits, by sentence-transformers' function for
AVX2; the mean cosine of its vectors with those of `onnx` is printed.
"""

import base64
import socket
import sys
import tempfile
import threading
from typing import Any

import numpy as np
import uvicorn
from absl import app, flags
from fastapi import FastAPI

_MODEL = flags.DEFINE_string("model", None, "Folder of sentence-transformers.", required=True)
_BACKEND = flags.DEFINE_enum("backend", "torch", ["torch", "onnx", "onnx_int8"], "What computes.")

PROBES = ["what is an encoder?", "A paragraph of several words, with a comma.", "wind tunnel", "7"]


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


def loaded(folder: str, backend: str) -> Any:
    """The model, to compute on the CPU."""
    from sentence_transformers import SentenceTransformer

    if backend != "onnx_int8":
        return SentenceTransformer(folder, device="cpu", backend=backend)
    from sentence_transformers import export_dynamic_quantized_onnx_model

    whole = SentenceTransformer(folder, device="cpu", backend="onnx")
    with tempfile.TemporaryDirectory() as copy:
        whole.save_pretrained(copy)
        export_dynamic_quantized_onnx_model(whole, "avx2", copy)
        file = {"file_name": "onnx/model_quint8_avx2.onnx"}
        found = SentenceTransformer(copy, device="cpu", backend="onnx", model_kwargs=file)
    both = [one.encode(PROBES, normalize_embeddings=True) for one in (whole, found)]
    cosine = float((both[0] * both[1]).sum(axis=1).mean())
    print(f"mean cosine with float32: {cosine:.4f}", file=sys.stderr, flush=True)
    return found


def main(_: list[str]) -> None:
    """Serves until it is stopped."""
    model = loaded(_MODEL.value, _BACKEND.value)
    model.encode(["warm up"], show_progress_bar=False)
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"ready at http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(create_app(model), log_level="warning")).run([listener])


if __name__ == "__main__":
    app.run(main)
