"""What a job needs in a cloud besides its flags: credentials, and buckets that exist. Asked before anything is written.

Clients of Google Cloud go on without credentials, and then wait for minutes, or speak of a missing permission.
"""

from __future__ import annotations

import functools

from schemas import storage
from schemas.errors import UsageError

STORES = ("gs", "gcs", "s3", "s3a")


def check_credentials(runner: str) -> None:
    """Raise UsageError when this machine has no credentials for Google Cloud. Takes seconds where there are none."""
    if not has_google_credentials():
        raise UsageError(
            f"--runner {runner} needs credentials of Google Cloud, and there are none on this machine: `gcloud auth "
            "application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a service account's key file. "
            "Nothing was written or submitted."
        )


@functools.cache
def has_google_credentials() -> bool:
    """Whether Google's client finds credentials: of a user, of a service account, or of the machine in their cloud."""
    import google.auth
    from google.auth.exceptions import GoogleAuthError

    try:
        google.auth.default()
    except GoogleAuthError:
        return False
    return True


def check_buckets(folders: dict[str, str]) -> list[str]:
    """Raise UsageError for a folder, by its flag, whose bucket does not exist. Return what could not be asked.

    Without credentials Google's buckets are not asked, because that would take long.
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
    """Whether there is a bucket; None when the store does not say, for want of a permission or of a connection."""
    fs, path = storage.filesystem(bucket)
    try:
        fs.info(path)
    except FileNotFoundError:
        return False
    except Exception:  # packages of stores raise many types
        return None
    return True
