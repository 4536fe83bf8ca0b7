"""XLA's flags for tests and the processes that they start."""

# Compiling is most of what these tests do: without optimising it takes half the time, and without
# the newer way to emit fusions half of that.
_COMPILE_FAST = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


# On a busy machine a device may come late to a collective: after 40 seconds XLA would abort.
_WAIT = "--xla_cpu_collective_call_terminate_timeout_seconds=600"


def flags(count: int = 1) -> str:
    """So many virtual CPU devices, patient ones, and programs that are compiled fast."""
    return f"{_COMPILE_FAST} {_WAIT} --xla_force_host_platform_device_count={count}"
