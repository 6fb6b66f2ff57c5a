"""What addresses of web servers and of the Hugging Face Hub name: files, or pages about them."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from schemas.errors import DataError, UsageError

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


def info_now(fs: Any, path: str) -> dict[str, Any]:
    """Return what a store tells about a file now. The Hub's package remembers folders as they were."""
    if "hf" not in fs.protocol:
        return fs.info(path)
    from huggingface_hub import HfApi, RepoFile  # take a while

    place = fs.resolve_path(path)
    of_repository = {"revision": place.revision, "repo_type": place.repo_type}
    for found in HfApi(endpoint=fs.endpoint).get_paths_info(place.repo_id, place.path_in_repo, **of_repository):
        if isinstance(found, RepoFile):
            return {"size": found.size, "blob_id": found.blob_id}
    raise FileNotFoundError(path)
