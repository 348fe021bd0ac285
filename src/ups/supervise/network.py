"""Ports, addresses and interfaces: where the ranks of a job can meet."""

from __future__ import annotations

import errno
import fcntl
import socket
import struct

from ups.types import ConfigError

SIOCGIFADDR = 0x8915


def free_port() -> int:
    """A port nobody uses, chosen by the kernel."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_taken(rendezvous: str) -> bool:
    """Whether somebody on this machine already listens where node 0 is to be met."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(rendezvous.rpartition(":")[2])))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def answers(rendezvous: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = rendezvous.rpartition(":")
    if not (host and port.isdigit()):
        raise ConfigError(f"nodes need a place to meet; give --rendezvous HOST:PORT of node 0, not '{rendezvous}'.")
    try:
        with socket.create_connection((host, int(port)), timeout=2):
            return True
    except OSError:
        return False


def interface_of(address: str) -> str:
    """The name of the network interface that has an IPv4 address; empty where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has no address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def local_address(rendezvous: str) -> str:
    """This machine's address as seen on the way to the rendezvous; empty where there is no way."""
    host, _, port = rendezvous.rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))  # sends nothing: it only asks the routing table
            return str(probe.getsockname()[0])
    except OSError:
        return ""
