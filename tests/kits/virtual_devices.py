"""XLA's flags for tests and the processes that they start.

TensorFlow, in the process of some tests, reads them too, with a separate XLA, and aborts at one
that it does not know.
"""

# Compiling is most of what these tests do: without optimising it takes half the time, and without
# the newer way to emit fusions half of that.
_COMPILE_FAST = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


def flags(count: int = 1) -> str:
    """So many virtual CPU devices, and programs that are compiled fast rather than run fast."""
    return f"{_COMPILE_FAST} --xla_force_host_platform_device_count={count}"
