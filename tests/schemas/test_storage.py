import errno
import os
import shutil
from types import SimpleNamespace

import pytest

from schemas import storage, urls
from schemas.command_line import file_path
from schemas.errors import StorageError, UsageError


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
    with pytest.raises(StorageError, match=r"needs 3 bytes and [\d,]+ are free"):
        storage.publish(url, b"new")
    assert storage.names(str(tmp_path)) == ["x.bin"]
    assert storage.read(url) == b"old"


@pytest.mark.parametrize(
    ("free_files", "files", "told"),
    [(0, 30, "has no free inode left for the file"), (0, 0, "so a quota may be reached"), (9, 30, "so a quota may be")],
)
def test_a_disk_that_refuses_though_bytes_are_free_says_what_is_used_up(
    tmp_path, monkeypatch, free_files: int, files: int, told: str
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_files=files, f_favail=free_files))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(StorageError, match=told):
        storage.publish(str(tmp_path / "x.bin"), b"new")


def test_a_limit_on_the_size_of_files_is_named(tmp_path, monkeypatch) -> None:
    def refused(_: int) -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(StorageError, match=r"File too large. Raise the limit on the size of files \(ulimit -f\)\.$"):
        storage.publish(str(tmp_path / "x.bin"), b"new")


def test_unknown_protocol_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="nosuch"):
        storage.exists("nosuch://x")


def test_a_file_system_that_does_not_start_is_one_line(monkeypatch) -> None:
    """Without Java, pyarrow cannot open Hadoop's."""
    monkeypatch.setenv("JAVA_HOME", "/none")
    with pytest.raises(
        StorageError, match=r"^hdfs://host/pairs cannot be opened on machine .* needs Java and Hadoop"
    ) as e:
        storage.exists("hdfs://host/pairs")
    assert "\n" not in str(e.value)


def test_join() -> None:
    assert storage.join("s3://b/run/", "a", "x.arrow") == "s3://b/run/a/x.arrow"
    assert storage.join("/", "a") == "/a"


def test_a_path_without_a_scheme_is_local_whatever_it_holds(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a::b.bin", "[c].bin", "d,e.bin", "f%41.bin"):
        storage.publish(name, name.encode())
        assert storage.read(name) == storage.read(str(tmp_path / name)) == name.encode()
    assert storage.names(".") == ["[c].bin", "a::b.bin", "d,e.bin", "f%41.bin"]


def test_an_empty_base_is_not_the_root_folder() -> None:
    with pytest.raises(UsageError, match=r"folder that holds manifest\.json is empty"):
        storage.join("", "manifest.json")
    with pytest.raises(UsageError, match="path is empty"):
        storage.exists("")


def test_what_the_system_refuses_names_the_path_and_the_reason(tmp_path) -> None:
    """Loops and folders are mistakes in a path; a folder that cannot be made is the disk's."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="loop cannot be opened: Too many levels of symbolic links"):
        storage.read(str(tmp_path / "loop"))
    with pytest.raises(UsageError, match="cannot be opened: Is a directory"):
        storage.read(str(tmp_path))
    with pytest.raises(StorageError, match="file/x cannot be written: Not a directory"):
        storage.publish(str(tmp_path / "file" / "x"), b"1")
    with pytest.raises(StorageError, match="/proc/x/y cannot be written: No such file or directory"):
        storage.publish("/proc/x/y", b"1")

    long = str(tmp_path / ("n" * 300))
    for use in (storage.names, storage.read, file_path, lambda place: storage.publish(f"{place}/x", b"1")):
        with pytest.raises(UsageError, match=r"nnn(/x)? cannot be a path: File name too long\. Give a shorter name\."):
            use(long)


def test_a_store_out_of_reach_is_one_error_for_every_use(store_out_of_reach) -> None:
    url = "s3://nowhere/x"
    uses = (storage.exists, storage.read, storage.names, storage.sizes, storage.remove, storage.modified)
    for use in (*uses, lambda url: storage.publish(url, b"1")):
        with pytest.raises(StorageError, match=r"s3://nowhere/x cannot be reached \(EndpointConnectionError"):
            use(url)


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("~/run/", "/home/ada/run"),
        ("file:///data/run", "/data/run"),
        ("file://~/run", "/home/ada/run"),
        ("out/run//", "out/run"),
        ("/", "/"),
        ("", ""),
        ("s3://bucket/run", "s3://bucket/run"),
        ("./~/run", "./~/run"),
    ],
)
def test_every_form_of_a_path_has_one_normal_form(written: str, normal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert urls.normal(written) == normal
