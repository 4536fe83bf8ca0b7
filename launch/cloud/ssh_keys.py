"""Whether ssh reaches several hosts at once: gcloud takes the key for that from ssh's agent."""

import subprocess

_LIST = ("ssh-add", "-l")  # its exit code is 1 without a key, and 2 without an agent


def warning(hosts: int) -> str:
    """What is wrong with the keys of this machine, for so many hosts; "" if nothing is."""
    if hosts < 2:
        return ""
    try:
        done = subprocess.run(_LIST, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        found, code = (done.stdout + done.stderr).strip(), done.returncode
    except FileNotFoundError:
        found, code = "no such program", 127
    if not code:
        return ""
    return (
        f"ssh-add -l finds no key ({found or f'exit code {code}'}), and gcloud reaches {hosts} "
        "hosts with a key of the agent only: eval $(ssh-agent); "
        "ssh-add ~/.ssh/google_compute_engine"
    )
