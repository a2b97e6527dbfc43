"""The rotation's kernel in Triton's interpreter beside plain torch; prints heads x pairs of each case that is
equal. TRITON_INTERPRET=1 python rotation_interpreted.py"""

from __future__ import annotations

import torch

from duplex.adapters.mage_vl.vision_kernels import rotate_fused
from duplex.adapters.mage_vl.vision_rotation import rotate_plain

for heads, pairs in ((2, 16), (3, 32), (16, 32)):
    generator = torch.Generator().manual_seed(heads)
    for dtype in (torch.float32, torch.bfloat16):
        qkv = torch.randn(3, 3, heads, 2 * pairs, generator=generator).to(dtype)
        angles = torch.randn(3, 2 * pairs, generator=generator) * 9
        cos, sin = angles.cos(), angles.sin()
        wanted = rotate_plain(qkv.clone(), cos, sin)
        done = rotate_fused(qkv.clone(), cos, sin)
        torch.testing.assert_close(done, wanted, rtol=1e-6 if dtype == torch.float32 else 8e-3, atol=1e-6)
        assert torch.equal(done[:, 2], qkv[:, 2])
        assert not torch.equal(done[:, 1], qkv[:, 1])
    print(f"{heads}x{pairs}")
