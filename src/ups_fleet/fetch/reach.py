"""Where a redirect may lead: into the network of this machine only to the host that the user has named."""

from __future__ import annotations

import ipaddress

from ups.types import DataError
from ups_fleet.web import addresses_of


def inward(address: str) -> str:
    """An address that only this machine or its network has, written alike for one host; empty for one of the world.
    Loopback is one host, whatever its number."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_loopback:
        return "loopback"
    return str(ip) if ip.is_multicast or not ip.is_global else ""


def check_redirect(place: str, named: str, host: str, address: str = "") -> None:
    """DataError where a redirect of `place` leads inward, to a `host` (at this `address`, if it is known already) that
    is another than the one that the user has `named`."""
    for one in [address] if address else addresses_of(host):
        if (inside := inward(one)) and inside not in map(inward, addresses_of(named)):
            where = host if host == one else f"{host} ({one})"
            raise DataError(
                f"{place}: redirects to {where}, which is this machine or in its network, and was not asked for; if "
                "you trust it, name that address itself."
            )
