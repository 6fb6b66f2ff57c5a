"""Checks whether ranks can connect: the host's name, the address that it resolves to, and a free port."""

from __future__ import annotations

import ipaddress
import os
import socket

from trainer.doctor.finding import Finding
from trainer.doctor.plan import Plan

DEFAULT_PORT = 29500
"""The default port at which ranks connect, for both deepspeed and torchrun."""


def check_network(plan: Plan) -> list[Finding]:
    """Check the host's name and the port at which ranks connect."""
    return [check_host_name(), check_port()]


def check_host_name() -> Finding:
    """Check that the host's name resolves to an address of this host, which gloo and launchers need."""
    host = socket.gethostname()
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    facts = {"host": host, "address": None, "gloo_interface": interface or None}
    advice = (
        f"For ranks on one machine nothing. For several, let {host} resolve to an address that the others reach, or "
        "set GLOO_SOCKET_IFNAME to the network interface between them, as in GLOO_SOCKET_IFNAME=eth0."
    )

    try:
        address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        return Finding("host name", "warning", f"{host} does not resolve ({error.strerror})", advice, facts)

    facts["address"] = address
    if ipaddress.ip_address(str(address).partition("%")[0]).is_loopback and not interface:
        return Finding("host name", "note", f"{host} is {address}, which other machines cannot reach", advice, facts)
    if not _can_listen(str(address)):
        return Finding("host name", "warning", f"{host} is {address}, which is not this machine's", advice, facts)

    with_interface = f", and gloo uses {interface}" if interface else ""
    return Finding("host name", "ok", f"{host} is {address}{with_interface}", facts=facts)


def check_port() -> Finding:
    """Check whether the launchers' default port is free, and name one that is."""
    port = int(os.environ.get("MASTER_PORT") or DEFAULT_PORT)
    with socket.socket() as anything:
        anything.bind(("127.0.0.1", 0))
        free_port = anything.getsockname()[1]

    facts = {"port": port, "is_free": _is_free(port), "free_port": free_port}
    if facts["is_free"]:
        return Finding("port", "ok", f"{port} is free", facts=facts)
    advice = f"Give the launcher another one: --master_port {free_port}"
    return Finding("port", "warning", f"{port}, the launchers' default, is in use", advice, facts)


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        # Like launchers, count the port of a run that has just ended as free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
            listener.listen()
        except OSError:
            return False
    return True


def _can_listen(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            return False
    return True
