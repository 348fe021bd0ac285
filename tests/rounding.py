"""Whether this processor's matrix products round a row alike in any company; torch's do on x86, and not on ARM."""

from __future__ import annotations

import functools

import pytest
import torch


@functools.cache
def by_size() -> bool:
    """Whether the bits of a row of a product depend on how many rows there are."""
    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(37, 64, generator=draw), torch.randn(64, 64, generator=draw)
    return not torch.equal(torch.cat([row @ w for row in x.split(1)]), x @ w)


needs_alike = pytest.mark.skipif(by_size(), reason="on this processor torch rounds a row by the size of its batch")
