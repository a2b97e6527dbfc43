"""One thread for torch: a test that splits its sums over threads is slower and not repeatable."""

from __future__ import annotations

try:
    import torch
except ImportError:
    pass
else:
    torch.set_num_threads(1)
