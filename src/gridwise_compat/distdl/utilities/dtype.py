"""Conversion between the dtypes of torch and NumPy, and a number for each."""

from __future__ import annotations

import numpy as np
import torch

_PAIRS = [
    (np.bool_, torch.bool),
    (np.uint8, torch.uint8),
    (np.int8, torch.int8),
    (np.int16, torch.int16),
    (np.int32, torch.int32),
    (np.int64, torch.int64),
    (np.float16, torch.float16),
    (np.float32, torch.float32),
    (np.float64, torch.float64),
    (np.complex64, torch.complex64),
    (np.complex128, torch.complex128),
]

numpy_to_torch_dtype_dict = dict(_PAIRS)
torch_to_numpy_dtype_dict = {there: here for here, there in _PAIRS}
numpy_to_intID_dtype_dict = {here: i for i, (here, _) in enumerate(_PAIRS)}
intID_to_numpy_dtype_dict = {i: here for i, (here, _) in enumerate(_PAIRS)}
torch_to_intID_dtype_dict = {there: i for i, (_, there) in enumerate(_PAIRS)}
intID_to_torch_dtype_dict = {i: there for i, (_, there) in enumerate(_PAIRS)}
