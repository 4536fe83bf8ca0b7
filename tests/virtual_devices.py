"""XLA's flags for tests and the processes that they start."""


def flags(count: int = 1) -> str:
    """So many virtual CPU devices, and programs that are compiled without being optimised.

    Compiling is most of what these tests do: it takes half the time then.
    """
    return f"--xla_backend_optimization_level=0 --xla_force_host_platform_device_count={count}"
