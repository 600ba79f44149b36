"""TAGI on a GPU: training steps, eager and captured, against back-propagation; and the cost of lower precision.

    python benchmarks/tagi_gpu.py

The same as `tagi.py --device cuda --compile` and `tagi_precision.py --device cuda`.
"""

from __future__ import annotations

import sys

import torch

import tagi
import tagi_precision
from run import NOTHING_HERE


def main() -> None:
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        sys.exit(NOTHING_HERE)
    print(torch.cuda.get_device_name())
    tagi.main(["--device", "cuda", "--compile"])
    tagi_precision.main(["--device", "cuda"])


if __name__ == "__main__":
    main()
