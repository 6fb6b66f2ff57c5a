"""Checks cloud credentials and that buckets exist, before a job writes anything.

Without credentials, Google Cloud's clients do not fail at once: they wait for minutes, or report a missing permission.
"""

from __future__ import annotations

import functools

from schemas import storage
from schemas.errors import UsageError

STORES = ("gs", "gcs", "s3", "s3a")


def check_credentials(runner: str) -> None:
    """Raise UsageError if this machine has no credentials for Google Cloud. Takes seconds if there are none."""
    if not has_google_credentials():
        raise UsageError(
            f"--runner {runner} needs credentials of Google Cloud, and there are none on this machine: `gcloud auth "
            "application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a service account's key file. "
            "Nothing was written or submitted."
        )


@functools.cache
def has_google_credentials() -> bool:
    """Whether Google's client finds credentials of a user, of a service account, or of a machine in Google Cloud."""
    import google.auth
    from google.auth.exceptions import GoogleAuthError

    try:
        google.auth.default()
    except GoogleAuthError:
        return False
    return True


def check_buckets(folders: dict[str, str]) -> list[str]:
    """Raise UsageError for a folder whose bucket does not exist. Return a line for each bucket that was not checked.

    folders: URL or path of each folder, by the flag that gave it. Without credentials Google's buckets are not checked,
    because the request would take a long time.
    """
    unknown = []
    for flag, url in folders.items():
        kind, is_url, rest = url.partition("://")
        bucket = rest.partition("/")[0]
        if not is_url or kind not in STORES:
            continue

        is_there = None if kind in ("gs", "gcs") and not _can_ask_google() else _exists(f"{kind}://{bucket}")
        if is_there is None:
            unknown.append(f"not checked: whether the bucket of {flag} {storage.printable(url)} exists")
        elif not is_there:
            raise UsageError(
                f"{flag} {storage.printable(url)} cannot be written: there is no bucket {bucket}. Check its name, or "
                "create it."
            )
    return unknown


def _can_ask_google() -> bool:
    try:
        return has_google_credentials()
    except ImportError:
        return False


def _exists(bucket: str) -> bool | None:
    """Whether a bucket exists; None if that is unknown, for lack of a permission or of a connection."""
    fs, path = storage.filesystem(bucket)
    try:
        fs.info(path)
    except FileNotFoundError:
        return False
    except Exception:  # clients of object stores raise many types
        return None
    return True
