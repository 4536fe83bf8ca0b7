"""The processes of a run, for commands that do without JAX.

Whether this host is one of several of a TPU slice, and which one, is JAX's to find out: a child
process asks it, `numbering`, and only on a host that may be one.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from t5x_style.distributed import launch_flags
from t5x_style.distributed.launch_flags import Processes, ProcessesError

PCI = Path("/sys/bus/pci/devices")
GOOGLE = "0x1ae0"  # vendor of TPU chips, and of network cards


def read(argv: Sequence[str], env: Mapping[str, str]) -> Processes | None:
    """As `numbering.read`, without importing JAX.

    Raises:
      ProcessesError: as `numbering.read`.
    """
    described = launch_flags.read(argv, env)
    if described is None and (launch_flags.alone(argv, env) or not may_have_chips()):
        return None
    if described is not None and described.address is not None:
        return described
    command = [sys.executable, "-m", "t5x_style.distributed.numbering", *argv]
    here = Path(__file__).resolve().parents[2]  # where `-m` finds our packages
    done = subprocess.run(command, env=dict(env), cwd=here, capture_output=True, text=True)
    if done.returncode:
        raise ProcessesError(done.stderr.strip())
    found = json.loads(done.stdout)
    return None if found is None else Processes(**found)


def may_have_chips() -> bool:
    """Whether a device of Google's is on this machine's PCI bus."""
    return any(path.read_text().strip() == GOOGLE for path in PCI.glob("*/vendor"))
