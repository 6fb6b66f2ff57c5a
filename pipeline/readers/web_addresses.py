"""What addresses of web servers and of the Hugging Face Hub name: files, or pages about them."""

from __future__ import annotations

import re
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from schemas.errors import DataError, UsageError
from schemas.urls import filesystem, storage_errors_of

_PAGE_OF_HUB = re.compile(
    r"https?://huggingface\.co/(datasets/[^/?#]+/[^/?#]+)"
    r"(?:/(?:tree|blob)/([^/?#]+)(/[^?#]*)?|/viewer[^?#]*)?/?(?:[?#].*)?"
)
_SUFFIX_OF_FILE = re.compile(r"\.(?!x?html?$|php$|aspx?$|jsp$)\w{2,8}$", re.IGNORECASE)


def is_web(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def refuse_page(url: str) -> None:
    """Raise UsageError for the page of a dataset on the Hub, and for that of a folder on a web server."""
    if page := _PAGE_OF_HUB.fullmatch(url):
        dataset, revision, path = page.groups(default="")
        at = f"@{revision}" if revision not in ("", "main") else ""
        raise UsageError(f"--input {url} is a page. The dataset's files are at hf://{dataset}{at}{path.rstrip('/')}")
    if is_web(url) and url.endswith("/"):
        raise UsageError(f"--input {url} is a page, not a folder. Name its files, or give a pattern: '{url}*.txt'")


def refuse_sent_page(url: str, entry: dict[str, Any]) -> None:
    """Raise an error if a server sends a page in place of a file. entry: the facts that it tells."""
    if is_web(url) and entry.get("url", "").endswith("/"):
        refuse_page(entry["url"])
    if is_web(url) and entry.get("mimetype") == "text/html" and _SUFFIX_OF_FILE.search(urlsplit(url).path):
        raise DataError(
            f"--input {url}: the server sends a page, and not the file. Open it in a browser: it may ask for a login, "
            'or show the file, whose own address, as behind "Raw" on GitHub, is what to give.'
        )


def pinned(url: str) -> str:
    """Return the URL of a file of the Hub with the commit of its revision in place of that; any other URL as it is.

    So a job reads one state of a dataset, whatever is committed meanwhile, and asks the Hub once what that is.
    """
    if not url.startswith("hf://"):
        return url
    fs, path = filesystem(url)
    place = fs.resolve_path(path)
    root = path.removesuffix(f"/{place.path_in_repo}").partition("@")[0]
    return f"hf://{root}@{commit_of(place.repo_type, place.repo_id, place.revision)}/{place.path_in_repo}"


@cache
def commit_of(repo_type: str, repo_id: str, revision: str) -> str | None:
    """Return the commit that a revision of a repository stands for, as this process first found it."""
    from huggingface_hub import HfApi  # takes a while

    with storage_errors_of(f"hf://{repo_type}s/{repo_id}@{revision}"):
        return HfApi().repo_info(repo_id, repo_type=repo_type, revision=revision).sha
