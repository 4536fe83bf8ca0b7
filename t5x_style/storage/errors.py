"""Errors of object storage, in words that say what to do.

All derive from ValueError. Only `Missing` is an OSError, too: code that treats an OSError as "there
is no such file" must not take a missing permission or an outage for one.
"""

import re


class StorageError(ValueError):
    """Object storage did not do what was asked."""


class Missing(StorageError, FileNotFoundError):
    """No such object, or no such bucket."""

    def __str__(self) -> str:
        return str(self.args[0])


class NoPermission(StorageError):
    """The account lacks a permission."""


class Unreachable(StorageError):
    """No answer for as long as requests are repeated. A write may have happened or not."""


class Conflict(StorageError):
    """The object has another generation than the one that was to be replaced."""


def no_permission(path: str, permission: str, account: str, answer: str) -> NoPermission:
    """Args:
    path: that was asked for.
    permission: that the operation needs; the one in the answer counts more.
    account: that asked; the one in the answer counts more.
    answer: Google's text.
    """
    named = re.search(r"\bstorage\.\w+\.\w+", answer)
    member = re.search(r"[\w.+-]+@[\w.-]+\w", answer)
    permission = named.group() if named else permission
    account = member.group() if member else account
    bucket = path.split("/")[2]
    return NoPermission(
        f"{path}: {account} lacks the permission {permission} on bucket {bucket}. Grant a role "
        f"that has it, for instance: gcloud storage buckets add-iam-policy-binding gs://{bucket} "
        f"--member=MEMBER --role=roles/storage.objectUser. Google's answer: {answer.strip()}"
    )


def unreachable(path: str, seconds: float, last: str) -> Unreachable:
    """The error after `seconds` of repeated requests; `last` is what the last one failed with."""
    return Unreachable(
        f"{path}: object storage did not do what was asked within {seconds:g} s of repeated "
        f"requests; the last one failed with: {last}. Check the network and "
        "https://status.cloud.google.com, then run the same command again."
    )
