"""torchvision without its compiled operators: its wheels are built for CUDA's torch and cannot be loaded by the CPU's.

Its models do not need them; its import does, to register shapes for them. So they are declared, and calling one is an error.
"""

from __future__ import annotations

import torch

NAMES = ("nms", "qnms", "roi_align", "_roi_align_backward", "ps_roi_align", "_ps_roi_align_backward", "roi_pool",
         "_roi_pool_backward", "ps_roi_pool", "_ps_roi_pool_backward", "deform_conv2d", "_deform_conv2d_backward")  # fmt: skip

_declared: list[torch.library.Library] = []


def declare() -> None:
    """Make `import torchvision` work, with or without its compiled operators."""
    try:
        import torchvision
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in NAMES:
            try:
                library.define(f"{name}(Tensor x) -> Tensor")
            except RuntimeError:
                continue  # it is there
        _declared.append(library)
        import torchvision  # noqa: F401
