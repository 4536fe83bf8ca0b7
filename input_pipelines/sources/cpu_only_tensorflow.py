"""TensorFlow for reading and writing data: on the host, never on an accelerator."""

import functools
from typing import Any


@functools.cache
def cpu_only_tensorflow() -> Any:
    """TensorFlow, imported on first use (it takes seconds) and kept away from accelerators."""
    import tensorflow as tf

    for kind in ("GPU", "TPU"):
        if tf.config.list_physical_devices(kind):
            tf.config.set_visible_devices([], kind)
    return tf
