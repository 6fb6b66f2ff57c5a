"""Deletes folders of millions of files in bounded memory, with one chosen file deleted last."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from schemas import storage

PAGE = 1000
"""Files listed, and then deleted, per request to S3: the maximum that S3 accepts."""


def remove_folder(url: str, last: str) -> None:
    """Delete a folder or a file. The folder's file `last` is deleted after everything else.

    Does nothing if `url` does not exist. Raises StorageError if the disk or the store fails.
    """
    kept = storage.join(url, last)
    if storage.is_local(url):
        for name in storage.names(url):
            if name != last:
                storage.remove(storage.join(url, name))
    else:
        fs, kept_path = storage.filesystem(kept)
        with contextlib.suppress(FileNotFoundError), storage.storage_errors_of(url, FileNotFoundError):
            for page in _pages(url):
                unwanted = [path for path in page if path != kept_path]
                if unwanted:
                    fs.rm(unwanted)

    storage.remove(url)


def _pages(url: str) -> Iterator[list[str]]:
    """Yield the paths of all files below a folder in a store.

    For S3, only one page is in memory at a time. The packages for other stores can only list a whole folder at once,
    which takes about a kilobyte per file.
    """
    fs, path = storage.filesystem(url)
    if "s3" not in fs.protocol:
        yield list(fs.find(path))
        return

    bucket, key, _ = fs.split_path(path)
    wanted = {"Bucket": bucket, "Prefix": key.rstrip("/") + "/", "MaxKeys": PAGE}
    while True:
        page = fs.call_s3("list_objects_v2", **wanted)
        yield [f"{bucket}/{entry['Key']}" for entry in page.get("Contents", [])]
        if not page.get("IsTruncated"):
            return
        wanted["ContinuationToken"] = page["NextContinuationToken"]
