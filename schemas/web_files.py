"""Files on web servers, by fsspec's client, which leaves open what is decided here.

A range of a file is exactly that, or an error: some servers answer with the whole file, another range, or a page. A
file is missing if its server says so, and nothing else counts as that. What may pass is asked again. Addresses are sent
as they were written, and files come as they are stored, whatever compression a server offers for their transport.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import aiohttp
import yarl
from fsspec.implementations.http import HTTPFileSystem

from schemas.errors import StorageError

DELAYS = (1, 4, 16)
"""Seconds between attempts."""

CONNECTIONS = 4  # of a process to a server; some refuse more
SILENT_SECONDS = 30  # after which a server has hung up; it is asked once more
MISSING = (404, 410)
TOO_MANY_REQUESTS = 429

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")

Read = Callable[[aiohttp.ClientResponse], Awaitable[Any]]


class UnexpectedAnswerError(aiohttp.ClientError):
    """A server answered something else than what was asked for."""


async def _session(**_: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit_per_host=CONNECTIONS),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=SILENT_SECONDS, sock_read=SILENT_SECONDS),
        headers={"Accept-Encoding": "identity", "User-Agent": "clozeline"},  # some refuse clients without a name
        auto_decompress=False,
        requote_redirect_url=False,
        trust_env=True,  # proxies, and the passwords of ~/.netrc
    )


class WebFileSystem(HTTPFileSystem):
    """fsspec's file system of http:// and https://."""

    def __init__(self, **options: Any):
        super().__init__(get_client=_session, **options)

    def encode_url(self, url: str) -> yarl.URL:
        """Return an address; what is ASCII is not quoted again, so that signatures stay."""
        return yarl.URL(url, encoded=url.isascii() and " " not in url)

    async def _info(self, url: str, **_: Any) -> dict[str, Any]:
        """Return what a request for the first byte tells. Not all servers take HEAD, or tell sizes then."""
        return await self._asked(url, {"Range": "bytes=0-0"}, partial(_facts, url))

    async def _exists(self, path: str, strict: bool = False, **_: Any) -> bool:
        try:
            await self._info(path)
        except FileNotFoundError:
            return False
        return True

    async def _cat_file(self, url: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        if start is None or end is None:
            return await self._asked(url, {}, aiohttp.ClientResponse.read)
        found = b""
        is_last = False
        while not is_last and (place := start + len(found)) < end:
            headers = {"Range": f"bytes={place}-{end - 1}"}
            part, is_last = await self._asked(url, headers, partial(_part, place, end))
            found += part
        return found

    async def _asked(self, url: str, headers: dict[str, str], read: Read) -> Any:
        """Return what `read` makes of the answer. Raises FileNotFoundError, aiohttp's errors and StorageError."""
        session = await self.set_session()
        delays: list[float | None] = [*DELAYS, None]
        while delays:
            delay = delays.pop(0)
            try:
                async with session.get(self.encode_url(url), headers=headers) as answer:
                    if answer.status in MISSING:
                        raise FileNotFoundError(url)
                    if answer.status != 416:  # no such range, as of an empty file
                        answer.raise_for_status()
                    return await read(answer)
            except (aiohttp.ClientError, TimeoutError) as error:
                if delay is None or not _may_pass(error):
                    raise
                if isinstance(error, TimeoutError):
                    del delays[:-1]
            await asyncio.sleep(delay)


def _may_pass(error: Exception) -> bool:
    if isinstance(error, aiohttp.ClientResponseError):
        return error.status >= 500 or error.status == TOO_MANY_REQUESTS
    return not isinstance(error, aiohttp.ClientConnectorError | aiohttp.InvalidURL)


async def _facts(url: str, answer: aiohttp.ClientResponse) -> dict[str, Any]:
    """Return the facts of a file as fsspec has them; without a size if the server does not tell it."""
    headers = answer.headers
    size = headers.get("Content-Range", "").rpartition("/")[2] if answer.status != 200 else None
    if answer.status == 200 and headers.get("Content-Encoding", "identity") == "identity":
        size = headers.get("Content-Length")
        size = None if size == "1" else size  # likely of the range alone, and the status is wrong
    facts = {"name": url, "type": "file", "size": int(size) if size and size.isdecimal() else None}
    # Mirrors of one server may differ in their ETags.
    version = next((name for name in ("Last-Modified", "ETag") if name in headers), None)
    named = {version: headers[version]} if version else {}
    return facts | named | {"url": str(answer.url), "mimetype": answer.content_type}


async def _part(start: int, end: int, answer: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """Return the bytes of an answer, which begin at `start`, and whether the file ends with them."""
    if answer.status == 416:
        answer.raise_for_status()  # the file is shorter than it was
    if answer.status == 200 and (start or answer.content_length is None or answer.content_length > end):
        raise StorageError(
            f"The server of {answer.url} does not send parts of files, which are read in parts. Download it first."
        )
    data = await answer.read()
    found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if answer.status == 200 and len(data) == end:
        return data, True
    if answer.status == 206 and found and int(found[1]) == start and len(data) == int(found[2]) + 1 - start > 0:
        return data[: end - start], found[3] == str(start + len(data))
    raise UnexpectedAnswerError(
        f"for bytes {start:,} to {end:,} it sent {len(data):,} bytes with status {answer.status}"
    )
