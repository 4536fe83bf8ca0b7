"""Eight virtual devices and a compilation cache; `shared` is the optional test data."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.kits import virtual_devices

REPOSITORY = Path(__file__).resolve().parent.parent

os.environ.setdefault("JAX_PLATFORMS", "cpu")
FLAGS, INHERITED = virtual_devices.flags(8), os.environ.get("XLA_FLAGS", "")
if FLAGS not in INHERITED:  # a worker has them already; a cached program goes by all of them
    os.environ["XLA_FLAGS"] = f"{INHERITED} {FLAGS}".strip()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(REPOSITORY / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest  # noqa: E402


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data sets and golden numbers; it is next to the checkout, or absent."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"needs the data folder {folder.name}/ next to the checkout")
    return folder


@pytest.fixture(scope="module", autouse=True)
def _compiled_programs_go() -> Iterator[None]:
    """A worker that keeps the programs of every file grows to several GiB."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
        gc.collect()


@pytest.fixture
def for_tpus() -> Iterator[None]:
    """Programs for TPUs can be compiled; JAX's cache, which cannot read them back, is off."""
    pytest.importorskip("libtpu", reason="needs libtpu to compile for TPUs: pip install libtpu")
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    enabled = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX asks only once whether to use it
    yield
    jax.config.update("jax_enable_compilation_cache", enabled)
    compilation_cache.reset_cache()
