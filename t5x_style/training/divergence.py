"""Every n steps the hosts of a training compare step, data and replicas of the state."""

import base64
import collections
import dataclasses
import json
from collections.abc import Callable, Mapping

import jax
import numpy as np

from t5x_style.distributed.peer_watch import Peers
from t5x_style.distributed.replica_fingerprints import (
    Disagreement,
    ReplicaFingerprints,
    local_rows,
)
from t5x_style.training.hooks import StepContext

SHOWN = 4  # arrays of a device, and devices, that an error names


class DivergenceError(ValueError):
    """Hosts that should hold the same do not."""


@dataclasses.dataclass(frozen=True)
class Check:
    """A comparison under way.

    Attributes:
      number: of the check, counted alike on all hosts.
      step: of the state.
      rows: fingerprints of the state, on the devices.
    """

    number: int
    step: int
    rows: jax.Array


class CompareHosts:
    """Raises where replicas of the state, the step or the plan of the data differ between hosts.

    Each host publishes its fingerprints one step after they were asked for, when the devices have
    the next step to do; process 0 compares them as soon as all are there, and its error ends all.
    Nobody waits for a device, nor for another host, before the next check is due. Where training
    ends, or is asked to stop, that is done at once: before the state is saved.
    """

    def __init__(
        self,
        every: int,
        peers: Peers,
        fingerprints: ReplicaFingerprints,
        data: Callable[[], str],
    ):
        """Args:
        every: steps between two checks.
        peers: all processes.
        fingerprints: of the state.
        data: gives the fingerprint of what decides the batches.
        """
        self._every, self._peers, self._data = every, peers, data
        self._fingerprints = fingerprints
        self._count = 0
        self._computing: Check | None = None
        self._published: collections.deque[Check] = collections.deque()  # process 0 compares them
        self._agreed: int | None = None

    def __call__(self, moment: StepContext) -> None:
        ending = moment.last or moment.stop
        due = ending or moment.step % self._every == 0
        self._publish()
        self._compare(wait=due)
        if due:
            rows = self._fingerprints.start(moment.state)
            self._computing = Check(self._count, moment.step, rows)
            self._count += 1
        if ending:
            self._publish()
            self._compare(wait=True)

    def _publish(self) -> None:
        check, self._computing = self._computing, None
        if check is None:
            return
        rows = {
            place: base64.b64encode(row.astype("<u4").tobytes()).decode()
            for place, row in local_rows(check.rows).items()
        }
        record = {"step": check.step, "data": self._data(), "rows": rows}
        self._peers.put(f"{_folder(check)}/{self._peers.number}", json.dumps(record))
        if self._peers.number == 0:
            self._published.append(check)

    def _compare(self, wait: bool) -> None:
        while self._published:
            check = self._published[0]
            folder = _folder(check)
            if wait:
                found = self._peers.everyone(
                    folder, f"fingerprint their state of step {check.step}"
                )
            elif len(set_by := self._peers.set_by(folder)) == self._peers.count:
                found = [set_by[number] for number in range(self._peers.count)]
            else:
                return
            self._published.popleft()
            self._judge(check, [json.loads(text) for text in found])
            self._peers.forget(folder)
            self._agreed = check.step

    def _judge(self, check: Check, records: list[Mapping[str, object]]) -> None:
        """Raises DivergenceError unless all agree; `records` by number of the process."""
        for name in ("step", "data"):
            values = [record[name] for record in records]
            usual = collections.Counter(values).most_common(1)[0][0]
            odd = [number for number, value in enumerate(values) if value != usual]
            if odd:
                raise DivergenceError(
                    f"at check {check.number} {name} is {values[odd[0]]!r} on "
                    f"{self._peers.named(*odd)}, and {usual!r} on "
                    f"{self._peers.named(values.index(usual))}. {self._advice()}"
                )
        holders: dict[int, int] = {}  # device -> process
        rows: dict[int, np.ndarray] = {}
        for number, record in enumerate(records):
            for place, text in dict(record["rows"]).items():  # type: ignore[call-overload]
                holders[int(place)] = number
                rows[int(place)] = np.frombuffer(base64.b64decode(text), "<u4")
        table = np.stack([rows[place] for place in range(len(rows))])
        if found := self._fingerprints.disagreements(table):
            raise DivergenceError(
                f"the hosts' states differ after step {check.step}:\n"
                + "\n".join(self._lines(found, holders))
                + f"\n{self._advice()}"
            )

    def _lines(self, found: list[Disagreement], holders: Mapping[int, int]) -> list[str]:
        devices: dict[int, list[Disagreement]] = {}
        for one in found:
            devices.setdefault(one.device, []).append(one)
        lines = []
        for device, odd in list(devices.items())[:SHOWN]:
            arrays = ", ".join(one.array for one in odd[:SHOWN])
            more = f" and {len(odd) - SHOWN} other arrays" if len(odd) > SHOWN else ""
            usual = self._peers.named(holders[odd[0].usual])
            tied = "; with as many replicas of each, either may be wrong" if odd[0].tied else ""
            lines.append(
                f"  {self._peers.named(holders[device])}, device {device}: {arrays}{more} differ "
                f"from {usual}, device {odd[0].usual}{tied}"
            )
        if len(devices) > SHOWN:
            lines.append(f"  and {len(devices) - SHOWN} other devices")
        return lines

    def _advice(self) -> str:
        if self._agreed is None:
            return "No step before was compared: train again, in another MODEL_DIR."
        return (
            f"All agreed at step {self._agreed}. Checkpoints of later steps may hold the "
            "difference: move them away, replace the host, and run the same command."
        )


def _folder(check: Check) -> str:
    return f"state/{check.number}"
