"""Hosts on this machine: network namespaces with an address, a name and processes of their own, joined by a cable.

Needs root. A host is power cycled by killing its first process, which takes all others with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil

from tests.processes import started

ADDRESSES = {"machine-1": "10.77.0.1", "machine-2": "10.77.0.2"}
STORE_ADDRESS = "10.77.0.3"
TOOLS = ("unshare", "nsenter", "ip", "hostname")


def why_not() -> str:
    """Say in one line why there can be no hosts here, or return an empty string."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"hosts in network namespaces: no {', '.join(missing)}"
    if os.geteuid() != 0:
        return "hosts in network namespaces: only root may create them"
    done = subprocess.run(["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "true"], check=False)
    return "" if done.returncode == 0 else "hosts in network namespaces: this kernel or container forbids them"


class Host:
    """A host by name. It shares this machine's files, but for /etc/hosts."""

    def __init__(self, name: str, folder: Path):
        self.name = name
        self._running: list[subprocess.Popen[str]] = []
        names = ["127.0.0.1 localhost", *(f"{address} {host}" for host, address in ADDRESSES.items())]
        hosts = folder / f"hosts-{name}"
        hosts.write_text("\n".join(names) + "\n")

        # `cat` is the host's first process: it waits for the end of a pipe that this process holds.
        flags = ["--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        setup = f"hostname {name} && mount --bind {hosts} /etc/hosts && ip link set lo up && echo up && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", *flags, "sh", "-c", setup], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None and self._holder.stdout.readline() == "up\n"
        [first] = psutil.Process(self._holder.pid).children()
        self.first_process = first.pid

    def command(self, *words: object) -> list[str]:
        """Return what runs a command on the host."""
        return ["nsenter", "--target", str(self.first_process), "--all", *map(str, words)]

    def run(self, *words: object) -> None:
        subprocess.run(self.command(*words), check=True)

    def start(self, *words: object, **environment: object) -> subprocess.Popen[str]:
        """Start a command on the host. What it prints is read by `communicate`."""
        variables = {name: str(value) for name, value in environment.items()}
        process = started(self.command(*words), env=os.environ | variables)
        self._running.append(process)
        return process

    def kill(self) -> None:
        """End all processes of the host at once, as a power cut does."""
        os.kill(self.first_process, signal.SIGKILL)
        self._holder.wait(20)

    def close(self) -> None:
        if self._holder.poll() is None:
            self.kill()
        for process in self._running:
            process.communicate(timeout=20)
        self._holder.communicate()


def connect(first: Host, second: Host) -> None:
    """Lay a cable between two hosts: eth0 of each, with the host's address."""
    _lay_cable(first, "eth0", second)
    for host in (first, second):
        _bring_up(host, "eth0", ADDRESSES[host.name])


def make_switch(host: Host) -> None:
    """Give a host a switch, at which it has the store's address, and to which `plug_in` connects others."""
    host.run("ip", "link", "add", "switch", "type", "bridge")
    _bring_up(host, "switch", STORE_ADDRESS)


def plug_in(host: Host, switch: Host) -> None:
    """Connect a host to the switch of another. The cable of a host that was killed is gone with it."""
    port = host.name
    _lay_cable(switch, port, host)
    switch.run("ip", "link", "set", port, "master", "switch", "up")
    _bring_up(host, "eth0", ADDRESSES[host.name])


def _lay_cable(first: Host, end: str, second: Host) -> None:
    """Connect `end` of the first host with eth0 of the second."""
    peer = ("peer", "name", "eth0", "netns", second.first_process)
    # Inside the first host process numbers are its own, so its network is entered alone.
    network = ["nsenter", "--target", str(first.first_process), "--net"]
    subprocess.run([*network, "ip", "link", "add", end, "type", "veth", *map(str, peer)], check=True)


def _bring_up(host: Host, interface: str, address: str) -> None:
    host.run("ip", "address", "add", f"{address}/24", "dev", interface)
    host.run("ip", "link", "set", interface, "up")
