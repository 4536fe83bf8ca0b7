"""A trial that a driver has started, until its end is recorded."""

from collections.abc import Iterable
from dataclasses import dataclass

from t5x_style.leases.lease import Lease
from t5x_style.sweeps.launchers import Job
from t5x_style.sweeps.trial_records import Kept
from t5x_style.sweeps.trials import Record, Trial


@dataclass
class Running:
    """A trial of this driver.

    Attributes:
      kept: its record.
      began: by the driver's clock.
      stopped: the record that it gets once it has ended, because the driver stopped it.
      asked: when it was asked to end, by the driver's clock.
      took: seconds of this attempt, once it has ended.
      ending: the record that it gets then.
      lost: another driver has taken it over, since this process was suspended for long.
    """

    trial: Trial
    kept: Kept
    lease: Lease
    job: Job
    began: float
    stopped: Record | None = None
    asked: float = 0.0
    took: float | None = None
    ending: Record | None = None
    lost: bool = False


def lose(found: Iterable[Running]) -> None:
    """Notes that other drivers have taken these trials over."""
    for one in found:
        one.lost = True
