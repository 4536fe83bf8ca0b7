"""A job that fills its folder a file at a time; on the way the disk may become read-only."""

import os
import subprocess

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"fill": {"name": "toy_fill", "version": 1, "outputs": ["last"]}}
CHUNK = 1 << 16  # bytes of a file
READ_ONLY_AT = "TOY_READ_ONLY_AT"  # number of the file before which `runs` is mounted read-only


def fill(chunks: int, model_dir: str) -> dict[str, str]:
    """Writes `chunks` files of 64 KiB; keeps those that are whole."""
    for number in range(chunks):
        path = os.path.join(model_dir, f"{number}.bin")
        if os.path.exists(path) and os.path.getsize(path) == CHUNK:
            print(f"kept {number}", flush=True)
            continue
        if os.environ.get(READ_ONLY_AT) == str(number):
            subprocess.run(["mount", "-o", "remount,ro", "runs"], check=True)
        with open(path, "wb") as file:
            file.write(bytes([number % 256]) * CHUNK)
            file.flush()
            os.fsync(file.fileno())
        print(f"wrote {number}", flush=True)
    return {"last": f"{chunks - 1}.bin"}
