"""What to warn of before slices cost money: a bucket far away or not seen, a missing ssh key."""

from collections.abc import Callable, Iterator

from launch.cloud import ssh_keys
from launch.cloud.requests import RequestError
from t5x_style.storage import places
from t5x_style.storage.errors import Missing, StorageError

Distance = Callable[[str, str], str]  # (path, zone) -> what is wrong, see `locations.warning`


def warnings_of(run_dir: str, zone: str, hosts: int, distance: Distance) -> Iterator[str]:
    """Texts for the user, none where all is well.

    Args:
      run_dir: where results are.
      zone: of the slices.
      hosts: of all slices of one job.
      distance: what is wrong with the bucket's place for a zone.

    Raises:
      RequestError: there is no such bucket.
    """
    if text := ssh_keys.warning(hosts):
        yield text
    if not places.is_remote(run_dir):
        return
    try:
        text = distance(run_dir, zone)
    except Missing as error:
        bucket, region = run_dir.split("/")[2], zone.rpartition("-")[0]
        raise RequestError(
            f"{run_dir}: there is no such bucket ({error}). Create it: gcloud storage "
            f"buckets create gs://{bucket} --location={region}"
        ) from error
    except StorageError as error:  # hosts may have what this machine lacks
        text = f"where the bucket of {run_dir} is, cannot be seen from here: {error}"
    if text:
        yield text
