"""What Google Cloud lets names, zones, labels and paths look like.

Each function returns what is wrong and what to write, or "" where nothing is. gcloud itself checks
none of this: a wrong name comes back from the server, or stays in a queue.
"""

import difflib
import re
from collections.abc import Mapping

NAME_LENGTH = 63  # of a DNS-1123 label
_NAME = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?")
_ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z][a-z0-9]*")
_REGION = re.compile(r"[a-z]+-[a-z]+\d+")
_PROJECT = re.compile(r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_ACCOUNT = re.compile(r"[a-z0-9.-]+@[a-z0-9.-]+\.[a-z]+")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_PATH = re.compile(r"projects/[a-z0-9.:-]+/(?:locations/[a-z0-9-]+/)?reservations/")


def run_name(name: str, count: int) -> str:
    """Of a run whose `count` nodes are named after it; node k of several is `NAME-k`."""
    suffix = len(f"-{count - 1}") if count > 1 else 0
    why = f", since its nodes are called {name[:8]}...-{count - 1}" if suffix else ""
    return dns_label("name", name, NAME_LENGTH - suffix, why)


def dns_label(what: str, name: str, most: int = NAME_LENGTH, why: str = "") -> str:
    """Of a DNS-1123 label that begins with a letter; `why` it may have `most` characters."""
    if len(name) > most:
        return (
            f"{what} {name!r} has {len(name)} characters; expected at most {most}{why}: "
            f"{tidy(name[:most])}"
        )
    if not _NAME.fullmatch(name):
        example = tidy(name)
        return (
            f"{what} {name!r} is no DNS-1123 label (a-z, 0-9 and -, a letter first, no - last)"
            + (f": write {example}" if example else "")
        )
    return ""


def tidy(text: str) -> str:
    """The nearest name that `run_name` allows; "" where there is none.

    >>> tidy("My_Run.2")
    'my-run-2'
    """
    word = re.sub(r"[^a-z0-9]+", "-", text.lower())
    return re.sub(r"^[^a-z]+", "", word)[:NAME_LENGTH].strip("-")


def zone(text: str) -> str:
    """Of a zone's name."""
    if not text:
        return "no zone: pass --zone=us-west4-a, or set it: gcloud config set compute/zone ZONE"
    if _REGION.fullmatch(text):
        return f"zone {text!r} is a region; a zone ends with a letter: {text}-a"
    if not _ZONE.fullmatch(text):
        return f"zone {text!r} is no zone; expected a region and a letter, as in us-west4-a"
    return ""


def project(text: str) -> str:
    """Of a project's id."""
    if not text:
        return "no project: pass --project=ID, or set it: gcloud config set project ID"
    if text.isdecimal():
        return f"project {text!r} is a number; expected the id: gcloud projects list has both"
    if not _PROJECT.fullmatch(text):
        return (
            f"project {text!r} is no id of a project (6 to 30 of a-z, 0-9 and -, a letter first); "
            "gcloud projects list has ids next to names"
        )
    return ""


def account(text: str) -> str:
    """Of a service account's e-mail; "" is the project's default."""
    if text and not _ACCOUNT.fullmatch(text):
        return (
            f"service account {text!r} is no e-mail; expected NAME@PROJECT.iam.gserviceaccount.com"
        )
    return ""


def reservation(text: str) -> str:
    """Of a reservation's name, or its full name; "" is any of the project."""
    name = _PATH.sub("", text)
    if text and not _NAME.fullmatch(name):
        return (
            f"reservation {text!r} is no name; expected NAME, or of another project "
            "projects/PROJECT/locations/ZONE/reservations/NAME"
        )
    return ""


def network(kind: str, text: str) -> str:
    """Of a network's or a subnetwork's name, or its path; "" is the default."""
    name = text.rpartition("/")[2]
    if text and not (_NAME.fullmatch(name) and len(name) <= NAME_LENGTH):
        return f"{kind} {text!r} is no name (a-z, 0-9 and -, a letter first)"
    return ""


def labels(given: Mapping[str, str], reserved: tuple[str, ...]) -> list[str]:
    """Of the user's labels; `reserved` are keys that the launcher sets."""
    problems = []
    for key, value in given.items():
        if key in reserved:
            problems.append(f"label {key} is the launcher's: it marks what may be deleted")
        elif not _LABEL_KEY.fullmatch(key):
            problems.append(f"label {key!r}: expected 1 to 63 of a-z, 0-9, _ and -, a letter first")
        if not _LABEL_VALUE.fullmatch(value):
            problems.append(
                f"label {key}={value!r}: expected a value of at most 63 of a-z, 0-9, _ and -"
            )
    return problems


def bucket_path(path: str) -> str:
    """Of a path on object storage; a local path has nothing wrong."""
    scheme, found, rest = path.partition("://")
    if not found:
        if match := re.match(r"(gs|gcs):/*(.*)", path):
            return f"RUN_DIR {path!r} is no address: write gs://{match[2]}"
        return ""
    if scheme == "gcs":
        return f"RUN_DIR {path!r}: Google's own spelling is gs://: write gs://{rest}"
    if match := re.match(r"https?://storage\.(?:cloud\.google|googleapis)\.com/(.*)", path):
        return f"RUN_DIR {path!r} is an address for browsers: write gs://{match[1]}"
    if scheme != "gs":
        hint = difflib.get_close_matches(scheme.lower(), ["gs", "gcs"], n=1)
        write = f": write gs://{rest}" if hint else "; expected gs://BUCKET/FOLDER"
        return f"RUN_DIR {path!r} is not on Cloud Storage{write}"
    name, _, folder = rest.partition("/")
    if not _BUCKET.fullmatch(name):
        return (
            f"RUN_DIR {path!r}: {name!r} is no bucket (3 to 63 of a-z, 0-9, -, _ and .); "
            "expected gs://BUCKET/FOLDER"
        )
    if not folder.strip("/"):
        return f"RUN_DIR {path!r} is a whole bucket: write gs://{name}/FOLDER"
    if "//" in f"/{folder}":
        joined = re.sub("/+", "/", folder.lstrip("/"))
        return f"RUN_DIR {path!r} has an empty part: write gs://{name}/{joined}"
    return ""
