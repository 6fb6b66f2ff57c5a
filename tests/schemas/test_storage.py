import errno
import os

import pytest

from schemas import storage
from schemas.errors import DataError, UsageError


def test_publish_is_read_back_and_leaves_nothing_else(tmp_path) -> None:
    storage.publish(str(tmp_path / "a" / "b.bin"), b"123")
    assert storage.read(str(tmp_path / "a" / "b.bin")) == b"123"
    assert storage.names(str(tmp_path / "a")) == ["b.bin"]


def test_publish_to_an_object_store() -> None:
    storage.publish("memory://store/x.bin", b"1")
    storage.move("memory://store/x.bin", "memory://store/y.bin")
    assert storage.names("memory://store") == ["y.bin"]
    storage.remove("memory://store")
    assert storage.names("memory://store") == []


def test_a_full_disk_names_needed_and_free_bytes_and_keeps_the_old(tmp_path, monkeypatch) -> None:
    url = str(tmp_path / "x.bin")
    storage.publish(url, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"needs 3 bytes and [\d,]+ are free"):
        storage.publish(url, b"new")
    assert storage.names(str(tmp_path)) == ["x.bin"]
    assert storage.read(url) == b"old"


def test_unknown_protocol_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="nosuch"):
        storage.exists("nosuch://x")


def test_join() -> None:
    assert storage.join("s3://b/run/", "a", "x.arrow") == "s3://b/run/a/x.arrow"
    assert storage.join("/", "a") == "/a"
