"""Every torch.nn layer with parameters or buffers, and every initialiser, as constructors to defer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .registry import CASES


def _layer(name: str, *args: object, **kwargs: object) -> None:
    label = name + "".join(f",{k}={v}" for k, v in kwargs.items())
    CASES[label] = lambda: getattr(nn, name)(*args, **kwargs)


for _dims in "123":
    _layer(f"Conv{_dims}d", 3, 5, 3)
    _layer(f"ConvTranspose{_dims}d", 4, 6, 3, groups=2, bias=False)
    _layer(f"BatchNorm{_dims}d", 7)
    _layer(f"InstanceNorm{_dims}d", 7, affine=True, track_running_stats=True)
_layer("Conv2d", 4, 8, 3, padding_mode="circular", dtype=torch.float64)
_layer("Linear", 33, 17)
_layer("Linear", 33, 17, dtype=torch.float64)
_layer("Linear", 33, 17, dtype=torch.bfloat16)
_layer("Linear", 33, 17, dtype=torch.float16, bias=False)
_layer("Linear", 5, 4, dtype=torch.complex64)
_layer("Bilinear", 3, 4, 5)
_layer("LayerNorm", [3, 4])
_layer("RMSNorm", 12)
_layer("GroupNorm", 2, 6)
_layer("SyncBatchNorm", 6)
_layer("Embedding", 20, 7)
_layer("Embedding", 20, 7, padding_idx=3)
_layer("Embedding", 3, 5, dtype=torch.float64)
_layer("EmbeddingBag", 11, 3)
_layer("PReLU", 4)
_layer("LSTM", 5, 7, num_layers=2, bidirectional=True)
_layer("LSTM", 5, 7, proj_size=3)
_layer("GRU", 5, 7, num_layers=2)
_layer("RNN", 5, 7)
_layer("LSTMCell", 5, 7)
_layer("GRUCell", 5, 7)
_layer("RNNCell", 5, 7)
_layer("MultiheadAttention", 16, 4)
_layer("MultiheadAttention", 16, 4, kdim=5, vdim=6, add_bias_kv=True)
_layer("TransformerEncoderLayer", 16, 2, 32)
_layer("TransformerDecoderLayer", 16, 2, 32)
_layer("Transformer", 16, 2, 2, 1, 32, batch_first=True)
_layer("AdaptiveLogSoftmaxWithLoss", 32, 20, [4, 10], div_value=2.0)
_layer("CrossEntropyLoss")
CASES["CrossEntropyLoss,weight"] = lambda: nn.CrossEntropyLoss(weight=torch.rand(5))
CASES["BCEWithLogitsLoss,pos_weight"] = lambda: nn.BCEWithLogitsLoss(pos_weight=torch.ones(5) * 3)
CASES["TransformerEncoder"] = lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 3)
for _lazy in ("LazyConv1d", "LazyConv2d", "LazyConvTranspose2d"):
    _layer(_lazy, 4, 3)
_layer("LazyLinear", 4)
for _lazy in ("LazyBatchNorm1d", "LazyBatchNorm2d", "LazyInstanceNorm2d"):
    _layer(_lazy)


class Holder(nn.Module):
    """A module to hang tensors on."""

    def __init__(self, **tensors: Tensor | nn.Module | None) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            if isinstance(tensor, Tensor) and not isinstance(tensor, nn.Parameter):
                self.register_buffer(name, tensor)
            else:
                setattr(self, name, tensor)


def _init_case(
    name: str, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (12, 18), **kwargs: object
) -> None:
    def build() -> nn.Module:
        weight = nn.Parameter(torch.empty(shape, dtype=dtype))
        getattr(nn.init, name)(weight, **kwargs)
        return Holder(weight=weight)

    CASES[f"init.{name},{str(dtype)[6:]},{shape}"] = build


for _name in ("uniform_", "normal_", "trunc_normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_"):
    _init_case(_name)
_init_case("kaiming_normal_", mode="fan_out", nonlinearity="relu")
_init_case("trunc_normal_", torch.float64, (3, 5), std=0.02)
_init_case("normal_", torch.bfloat16, (3, 5))
_init_case("normal_", torch.float16, (33,), mean=1.0)
_init_case("ones_")
_init_case("eye_", shape=(5, 5))
_init_case("dirac_", shape=(4, 4, 3))
_init_case("orthogonal_")
_init_case("sparse_", sparsity=0.4)
