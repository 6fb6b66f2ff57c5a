"""Leases when two jobs meet at the worst moment, each moment forced, and leases that outlive their process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.commit import leases
from schemas import storage
from schemas.errors import StorageError, UsageError

KEEP = "from pipeline.commit import leases\nwith leases.held({!r}, 'kept') as lease:\n    lease.keep = True"


@pytest.mark.parametrize("listing", [2, 3])
def test_a_claim_that_is_written_while_another_job_lists_is_not_removed(tmp_path, monkeypatch, listing) -> None:
    """The second job writes its claim just before one of the first job's listings, and looks around only later."""
    out = str(tmp_path)
    names, write = storage.names, leases.write
    listings: list[str] = []
    claimed = threading.Event()
    first_holds = threading.Event()
    holders: list[str] = []

    def job(token: str) -> None:
        try:
            with leases.held(out, token):
                holders.append(token)
                first_holds.set()
                if token == "a" and second.ident:
                    second.join(20)
                assert holders == [token]
                leases.check_held(out, token)
                holders.remove(token)
        except UsageError:
            pass

    second = threading.Thread(target=job, args=("b",))

    def names_in_turn(url: str, prefix: str = "") -> list[str]:
        if threading.current_thread() is not second:
            listings.append(url)
            if len(listings) == listing:
                second.start()
                assert claimed.wait(20)
        return names(url, prefix)

    def write_and_pause(output: str, token: str, owner: leases.Owner) -> None:
        write(output, token, owner)
        if token == "b" and not claimed.is_set():
            claimed.set()
            assert first_holds.wait(20)

    monkeypatch.setattr(storage, "names", names_in_turn)
    monkeypatch.setattr(leases, "write", write_and_pause)
    job("a")
    if second.ident:
        second.join(20)
    assert holders == []
    assert names(out) == []


def test_a_job_whose_claim_was_removed_claims_again_and_sees_the_holder(tmp_path, monkeypatch) -> None:
    out = str(tmp_path)
    names = storage.names
    modified = storage.modified
    removed: list[str] = []

    def remove_then_look(url: str) -> float | None:
        if not removed:
            removed.append(url)
            storage.remove(leases.lease_url(out, "mine"))
        return modified(url)

    with leases.held(out, "holder"):
        monkeypatch.setattr(storage, "modified", remove_then_look)
        with pytest.raises(UsageError, match="in use by another job"), leases.held(out, "mine"):
            pass
        assert names(out) == ["_lease-holder.json"]


def test_a_job_that_slept_while_it_claimed_gives_way_to_the_one_that_holds(tmp_path, monkeypatch) -> None:
    """Its claim expired meanwhile and was removed, so another job rightly took the folder."""
    out = str(tmp_path)
    write = leases.write
    others: list[object] = []

    def sleep_then_write(output: str, token: str, owner: leases.Owner) -> None:
        if token == "sleeper" and owner.holds and not others:
            os.utime(tmp_path / "_lease-sleeper.json", (0, 0))
            other = leases.held(out, "other")
            others.append(other)
            other.__enter__()
        write(output, token, owner)

    monkeypatch.setattr(leases, "write", sleep_then_write)
    with pytest.raises(UsageError, match="in use by another job"), leases.held(out, "sleeper"):
        pass
    leases.check_held(out, "other")
    others[0].__exit__(None, None, None)  # type: ignore[attr-defined]


def test_of_two_jobs_that_hold_one_folder_neither_publishes(tmp_path) -> None:
    """A renewal can write a lease again that another job has just removed as expired."""
    out = str(tmp_path)
    with leases.held(out, "first"):
        leases.write(out, "second", replace(leases.this_process(), holds=True))
        for token in ("first", "second"):
            with pytest.raises(StorageError, match="no longer held by this job"):
                leases.check_held(out, token)


def test_a_kept_lease_outlives_its_process(tmp_path) -> None:
    """A job that may still run elsewhere keeps the folder, although the process that submitted it is gone."""
    out = str(tmp_path / "out")
    subprocess.run([sys.executable, "-c", KEEP.format(out)], check=True)
    url = leases.lease_url(out, "kept")
    message = rf"may still run.*delete {re.escape(url)}"
    with pytest.raises(UsageError, match=message), leases.held(out, "next"):
        pass

    longer_than_others = time.time() - leases.EXPIRES_AFTER - 60
    os.utime(url, (longer_than_others, longer_than_others))
    with pytest.raises(UsageError, match=message), leases.held(out, "next"):
        pass

    os.utime(url, (0, 0))
    with leases.held(out, "next"):
        assert not Path(url).exists()
