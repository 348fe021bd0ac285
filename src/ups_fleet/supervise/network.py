"""Ports, addresses and interfaces: where the ranks of a job can meet."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import secrets
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from ups.types import ConfigError
from ups.wire import host_and_port
from ups_fleet.supervise.start_dir import StartDir

SIOCGIFADDR = 0x8915
IFF_UP, IFF_LOOPBACK = 1, 8
LISTENS = "0A"  # the state in /proc/net/tcp


def port_taken(rendezvous: str) -> bool:
    """Whether somebody on this machine already listens where node 0 is to be met; ConfigError if it cannot be here."""
    address = host_and_port(rendezvous)
    _refuse_names_of_loopback(rendezvous, address[0])
    try:
        socket.create_server(address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return True
        why = error.strerror or str(error)
        raise ConfigError(f"{rendezvous}: node 0 cannot listen there ({why}); give an address that it has.") from None
    return False


def _refuse_names_of_loopback(rendezvous: str, host: str) -> None:
    """The name of a machine is often its loopback address in its own /etc/hosts, where nobody else can reach it."""
    try:
        ipaddress.ip_address(host)
        return  # written as an address: it is meant
    except ValueError:
        pass
    try:
        addresses = {str(row[4][0]) for row in socket.getaddrinfo(host, None)}
    except OSError:
        raise ConfigError(f"{rendezvous}: the name {host} has no address here; give node 0's address.") from None
    if host != "localhost" and all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in addresses):
        raise ConfigError(
            f"{rendezvous}: {host} is {', '.join(sorted(addresses))} on this machine, where no other can reach it; "
            "give the address by which others see it."
        )


def private_meeting(files: StartDir) -> dict[str, str]:
    """The environment by which ranks of one machine meet: through a file nobody else can open, and on loopback alone,
    whatever interface the user's environment names."""
    place = {"UPS_MEET": f"file:{files.meeting()}", "UPS_GROUP": secrets.token_hex(8)}
    if name := loopback():
        place |= {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
    return place


def loopback() -> str:
    """The name of the loopback interface; empty where it is not up."""
    for _, name in socket.if_nameindex():
        try:
            flags = int(Path(f"/sys/class/net/{name}/flags").read_text(), 16)
        except (OSError, ValueError):
            flags = IFF_UP | IFF_LOOPBACK if name == "lo" else 0
        if flags & IFF_LOOPBACK and flags & IFF_UP:
            return name
    return ""


@dataclass(frozen=True)
class Listener:
    """A socket on which a process waits for others to connect."""

    address: str
    port: int
    pid: int


def is_private(address: str) -> bool:
    """Whether only processes of this machine reach an address."""
    return ipaddress.ip_address(address).is_loopback


def listeners(pid: int | None = None) -> list[Listener]:
    """Where a process, by default this one, listens for TCP connections."""
    pid = os.getpid() if pid is None else pid
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue  # closed in the meantime
    rows = []
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if words[3] == LISTENS and f"socket:[{words[9]}]" in inodes:
                host, _, port = words[1].partition(":")
                rows.append(Listener(_address(host), int(port, 16), pid))
    return sorted(rows, key=lambda row: (row.address, row.port))


def _address(text: str) -> str:
    """An address as /proc/net writes it: words of 32 bits, each in the machine's byte order."""
    words = [bytes.fromhex(text[i : i + 8]) for i in range(0, len(text), 8)]
    packed = b"".join(word[::-1] if struct.pack("=H", 1) == b"\1\0" else word for word in words)
    address = ipaddress.ip_address(packed)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def answers(rendezvous: str) -> bool:
    """Whether somebody listens there."""
    address = host_and_port(rendezvous)
    try:
        with socket.create_connection(address, timeout=2):
            return True
    except OSError:
        return False


def check_interface(name: str) -> None:
    """A ConfigError where this machine has no such interface, or one without an address."""
    names = [row[1] for row in socket.if_nameindex()]
    if name not in names:
        raise ConfigError(f"dist.interface is '{name}', which this machine has not; it has {', '.join(names)}.")
    try:
        up = int(Path(f"/sys/class/net/{name}/flags").read_text(), 16) & IFF_UP
    except (OSError, ValueError):
        up = IFF_UP  # it does not say
    if not up:
        raise ConfigError(f"dist.interface is '{name}', which is down; bring it up, or name another.")


def interface_of(address: str) -> str:
    """The name of the network interface that has an address; empty where there is none."""
    if ":" in address:
        return _interface_of_ipv6(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has no address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def _interface_of_ipv6(address: str) -> str:
    try:
        wanted = ipaddress.IPv6Address(address.partition("%")[0]).packed.hex()
        rows = [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
    except (OSError, ValueError):
        return ""
    return next((row[-1] for row in rows if row[0] == wanted), "")


def local_address(rendezvous: str) -> str:
    """This machine's address as seen on the way to the rendezvous; empty where there is no way."""
    try:
        rows = socket.getaddrinfo(*host_and_port(rendezvous), type=socket.SOCK_DGRAM)
        # A name means its IPv4 address, where it has one: there node 0 listens.
        for family, kind, _, _, address in sorted(rows, key=lambda row: row[0] != socket.AF_INET):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(address)  # sends nothing: it only asks the routing table
                return str(probe.getsockname()[0])
    except OSError:  # the name is not known here
        pass
    return ""
