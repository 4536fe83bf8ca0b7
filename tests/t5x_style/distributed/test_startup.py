"""What a process asks of its compilers before it starts."""

import os
import subprocess
import sys

import pytest

from t5x_style.distributed import startup

# Eight arrays that need not exist at the same time.
PROGRAM = """
import jax, jax.numpy as jnp
from t5x_style.distributed import startup

startup.start()

def f(x):
    return sum(jnp.sum(jnp.sin(x * i) @ x) for i in range(8))

compiled = jax.jit(f).lower(jnp.ones((512, 512))).compile()
print(compiled.memory_analysis().temp_size_in_bytes / 2**20)
"""


def temporaries(tmp_path, flags):
    """MiB that PROGRAM takes with these XLA_FLAGS of a user."""
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="measured with XLA's CPU backend on Linux")
def test_a_cpu_program_is_ordered_by_memory_unless_the_user_says_otherwise(tmp_path):
    by_memory = temporaries(tmp_path / "memory", "")
    by_concurrency = temporaries(tmp_path / "concurrency", f"{startup._CPU_SCHEDULER}=true")
    assert 0 < by_memory <= by_concurrency / 2


@pytest.mark.parametrize(
    "program",
    [
        "from t5x_style.distributed import startup; startup.start()"
        "; import jax; print(jax.devices()[0])",
        "from t5x_style.retrieval import bm25; assert bm25.stem(['rankings'])",
    ],
    ids=["devices", "bm25"],
)
def test_looking_for_a_tpu_that_is_not_there_says_nothing(tmp_path, program):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "TPU_"))}
    environment["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path)
    environment["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # else it is silent while others look for one
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "TPU" not in done.stderr


def test_other_flags_stay_and_the_scheduler_is_named_once(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--mine=1")
    startup.schedule_for_memory()
    startup.schedule_for_memory()
    assert os.environ["XLA_FLAGS"] == f"--mine=1 {startup._CPU_SCHEDULER}=false"


def test_the_compilers_stack_is_widened_once_beside_what_a_user_asks(monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--mine=1")
    startup.widen_compiler_stack()
    startup.widen_compiler_stack()
    assert os.environ["LIBTPU_INIT_ARGS"] == "--mine=1 --fibers_default_thread_stack_size=4194304"
