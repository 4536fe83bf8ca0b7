"""A job that grows a file a line a step, says so, and continues where a killed run has left it."""

import os

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"grow": {"name": "toy_grow", "version": 1, "outputs": ["grown"]}}


def grow(source: str | None, steps: int, model_dir: str) -> dict[str, str]:
    """Writes `steps` lines, each made from the line before it and the source's last one."""
    path = os.path.join(model_dir, "grown.txt")
    value = len(_lines(source)[-1]) if source else 1
    lines = _lines(path) if os.path.exists(path) else []
    with open(path, "wb") as file:  # what a kill has cut off is dropped
        file.write("".join(f"{line}\n" for line in lines).encode())
        for step in range(len(lines), steps):
            value = (value * 31 + step + len(lines)) % 1_000_003
            lines.append(f"{step} {(hash_of(lines[-1]) if lines else value) % 1_000_003}")
            file.write(f"{lines[-1]}\n".encode())
            file.flush()
            os.fsync(file.fileno())
            print(f"grew {os.path.basename(model_dir)} {step}", flush=True)
    return {"grown": "grown.txt"}


def hash_of(text: str) -> int:
    """A number that is the same in every process."""
    return sum((place + 1) * byte for place, byte in enumerate(text.encode())) * 7919


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file if line.endswith("\n")]
