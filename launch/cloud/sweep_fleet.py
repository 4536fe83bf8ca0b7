"""The slices of a sweep: for each worker one resource, `NAME-w0`, `NAME-w1` and so on.

They belong to workers, not to trials: a queue and a set-up take minutes, so that one trial follows
another on the same hosts. Labels say whose they are, as of a run: the name, and SWEEP_DIR.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from launch.cloud import decisions, queued_resources, recovery, reports
from launch.cloud.gcloud import Gcloud, GcloudError
from launch.cloud.reports import Resource
from launch.cloud.requests import Place, Request


@dataclass(frozen=True)
class Fleet:
    """Equal slices, some at a time.

    Attributes:
      request: for one worker; it is named after the sweep, and its `run_dir` is SWEEP_DIR.
      workers: how many.
    """

    request: Request
    workers: int

    @property
    def requests(self) -> list[Request]:
        """What is asked for, by each worker.

        Raises:
          RequestError: the sweep's name is too long for a worker's.
        """
        return [self._named(f"{self.request.name}-w{one}") for one in range(self.workers)]

    def _named(self, name: str) -> Request:
        return replace(self.request, name=name, needs_folder=True)

    def found(self, gcloud: Gcloud) -> list[Resource]:
        """Resources of this sweep in its zone, those of more workers than now included.

        Raises:
          GcloudError: Google did not say.
        """
        where = self.request
        answer = gcloud.read(queued_resources.list_all(where.zone, where.project))
        return [one for one in map(reports.resource, answer or ()) if self._is_ours(one)]

    def _is_ours(self, one: Resource) -> bool:
        named = re.fullmatch(rf"{re.escape(self.request.name)}-w\d+", one.name)
        return named is not None and not decisions.foreign(self._named(one.name), one)

    def place(self, name: str) -> Place:
        """Where a worker's resource is."""
        return self._named(name).place

    def costs(self, gcloud: Gcloud, name: str = "") -> Iterator[str]:
        """Lines on what is left, and whether it costs money.

        Args:
          gcloud: the command.
          name: of one worker's resource; "" for all.
        """
        try:
            found = self.found(gcloud)
        except GcloudError as error:
            yield (
                f"NOT KNOWN whether slices of {self.request.place} cost money ({error.short}). "
                f"To see: kennel tpu status --zone={self.request.zone} "
                f"--project={self.request.project}"
            )
            return
        if not found and not name:
            yield f"no slices are left of {self.request.place}; they cost nothing"
        for one in found:
            if name in ("", one.name):
                yield recovery.cost_of(one, self.place(one.name))

    def delete(self, gcloud: Gcloud, name: str) -> str:
        """Deletes a worker's resource, whatever runs there.

        Args:
          gcloud: the command.
          name: of the resource.

        Returns:
          A line on what is being deleted; "" where the sweep has nothing of this name.

        Raises:
          GcloudError: Google refused, or did not answer each time that it was asked.
        """
        place = self.place(name)
        found = recovery.find(gcloud, place)
        if found is None or not self._is_ours(found):
            return ""
        try:
            gcloud.read_text(queued_resources.delete(place))
        except GcloudError as error:
            if error.kind != "not_found":
                raise
        return f"{place} ({found.state}) is being deleted"
