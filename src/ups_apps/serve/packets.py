"""Packets: a little JSON and some float32 arrays as bytes, as WebSockets and the page exchange them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ups.types import Array, ConfigError

ENDING = "application/x-ups-packet"
MOST_JSON = 1 << 20  # bytes of the JSON of a packet


def packed(about: Mapping[str, Any], **arrays: Array | None) -> bytes:
    """`about` and the arrays that there are.

    The length of the JSON as four bytes, low byte first; the JSON, filled up with blanks to a multiple of four; then
    the arrays in little-endian float32, in the order of the pairs of name and shape that stand in it under `arrays`.
    """
    there = {name: np.ascontiguousarray(values, "<f4") for name, values in arrays.items() if values is not None}
    shapes = [(name, list(np.shape(values))) for name, values in arrays.items() if values is not None]
    head = json.dumps({**about, "arrays": shapes}, allow_nan=False).encode()
    head += b" " * (-len(head) % 4)
    return b"".join((len(head).to_bytes(4, "little"), head, *(values.tobytes() for values in there.values())))


def unpacked(data: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """What `packed` made of `about` and arrays; a ConfigError where the bytes are none of its."""
    length = int.from_bytes(data[:4], "little")
    if len(data) < 4 or length > min(len(data) - 4, MOST_JSON):
        raise ConfigError("the message is no packet: four bytes that say how long its JSON is, the JSON, the arrays.")
    try:
        about = json.loads(data[4 : 4 + length])
        shapes = [(str(name), [int(n) for n in shape]) for name, shape in about.pop("arrays")]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ConfigError(
            "the JSON of the packet is none, or does not say the names and shapes of its arrays."
        ) from None
    arrays, at = {}, 4 + length
    for name, shape in shapes:
        count = math.prod(shape)
        if min(shape, default=0) < 0 or len(shape) > 16 or count > (len(data) - at) // 4:
            raise ConfigError(f"the packet has not all numbers of its array '{name:.40}'; send it whole.")
        arrays[name] = np.frombuffer(data, "<f4", count, at).reshape(shape)
        at += 4 * count
    return about, arrays
