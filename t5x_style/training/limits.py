"""Limits on metrics above which a model is of no use: a training warns, and stops."""

from collections.abc import Callable, Sequence

from t5x_style.interfaces.metrics import MetricLimit
from t5x_style.training.hooks import StepContext


class LimitError(ValueError):
    """A metric is above what the objective allows."""


class WatchLimits:
    """Looks at the objective's limits at every n-th step and at the end.

    Warns where a metric rises above its first limit, and again only after it was below. Above the
    second it raises LimitError, before the step is saved.
    """

    def __init__(self, every: int, limits: Sequence[MetricLimit], warn: Callable[[str], None]):
        self._every, self._limits, self._warn = every, limits, warn
        self._above: set[str] = set()

    def __call__(self, moment: StepContext) -> None:
        if not self._limits or (moment.step % self._every and not moment.last):
            return
        for limit in self._limits:
            value = float(moment.metrics[limit.metric].value())
            if value > limit.stop_above:
                raise LimitError(
                    f"step {moment.step}: {limit.meaning} is {value:.1%} ({limit.metric}), more "
                    f"than {limit.stop_above:.0%}: training on would be of no use. {limit.advice}"
                )
            if value <= limit.warn_above:
                self._above.discard(limit.metric)
            elif limit.metric not in self._above:
                self._above.add(limit.metric)
                self._warn(
                    f"step {moment.step}: {limit.meaning} is {value:.1%} ({limit.metric}), more "
                    f"than {limit.warn_above:.0%}. {limit.advice}"
                )
