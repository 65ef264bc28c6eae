"""Host numbers on their way to a device."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(values: list[int], device: torch.device | str) -> Tensor:
    """int64 [len(values)] on `device`, copied there without waiting for the work that is queued on it.

    `torch.tensor(values, device=...)` waits: its source is pageable memory. Pinned memory is copied in the order of the
    queue, and torch hands it out again only when that is done.
    """
    pinned = torch.device(device).type == "cuda"
    return torch.tensor(values, dtype=torch.long, pin_memory=pinned).to(device, non_blocking=True)
