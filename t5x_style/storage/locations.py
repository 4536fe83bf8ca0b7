"""Compare the location of a bucket with that of the accelerators."""

from t5x_style.storage import objects, paths
from t5x_style.storage.objects import PathLike

# Multi-regions, and the starts of the names of regions in them.
MULTI_REGIONS = {"us": ("us-",), "eu": ("europe-",), "asia": ("asia-",)}


def warning(path: PathLike, zone: str, client: objects.Objects | None = None) -> str:
    """Warning about a bucket's location for machines in a zone; "" if it is fine.

    Args:
      path: any path in the bucket.
      zone: of the machines, as us-central1-a.
      client: for the requests; the program's unless given.

    Raises:
      errors.Missing: no such bucket.
      errors.NoPermission: storage.buckets.get is lacking.
      errors.Unreachable.
    """
    location, regions = (client or objects.default()).bucket_location(path)
    region = zone.rpartition("-")[0]
    near = region in (location, *regions) or region.startswith(MULTI_REGIONS.get(location, "\n"))
    if near:
        return ""
    return (
        f"Bucket {paths.split(path)[0]} is in {location}, the zone {zone} in {region}: reads are "
        "slower, and Google charges for each byte between regions. Use a bucket in "
        f"{region}: gcloud storage buckets create gs://NAME --location={region}"
    )
