"""One of several hosts that agree before they compute.

The variable WHAT is what is wrong with this one: `absent` never says what it runs, `idle` never
starts its devices, `hangs` has started them and never calls the all-gather. SECONDS: how long it
waits for others. GIN_NAME: value of the parameter NAME. BERT: hash of a source file.
"""

import os
import signal

from t5x_style.distributed import startup


def wait(*_: object) -> None:
    """Until another process ends this one."""
    signal.pause()


def main(what: str) -> None:
    """See the module's docstring."""
    startup.start()
    from t5x_style.distributed import agreement

    peers = startup.peers()
    assert peers is not None
    peers.patience = int(os.environ["SECONDS"])  # to start, all wait as long as they do elsewhere
    if what == "absent":
        wait()
    try:
        gin = {name.removeprefix("GIN_"): os.environ[name] for name in os.environ if "GIN_" in name}
        agreement.compare(peers, {"gin": gin, "code": {"models.bert": os.environ.get("BERT", "")}})
        if what == "idle":
            wait()
        if what == "hangs":
            agreement.multihost_utils.process_allgather = wait
        agreement.gather(peers)
    except agreement.ProcessesError as error:
        print(f"error: {error}", flush=True)
        peers.end(1, f"failed: {error}")
    print("all agree", flush=True)
    peers.close()


if __name__ == "__main__":
    main(os.environ.get("WHAT", ""))
