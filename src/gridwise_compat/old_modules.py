"""Modules of the old libraries without a file here: another module of this package, or of Gridwise, replaces each."""

from __future__ import annotations

HERE = __name__.rpartition(".")[0]

_SERVED_BY = {
    f"{HERE}.distdl.nn.conv": ("distdl.nn", "conv_channel conv_feature conv_general"),
    f"{HERE}.distdl.nn.padding": ("distdl.nn", "padnd unpadnd"),
    f"{HERE}.distdl.nn.primitives": ("distdl.nn", "all_sum_reduce broadcast repartition sum_reduce transpose"),
    f"{HERE}.distdl.backends.mpi.buffer": ("distdl.backends.mpi", "halo_exchange repartition"),
    f"{HERE}.distdl.backends.mpi.tensor_comm": ("distdl.backends.mpi", "tensor_decomposition"),
    f"{HERE}.distdl.backends.mpi.functional.functions": (
        "distdl.backends.mpi.functional",
        "all_sum_reduce broadcast halo_exchange repartition sum_reduce",
    ),
    f"{HERE}.distdl.utilities.index_tricks": ("distdl.utilities", "index_tools"),
    f"{HERE}.distdl.utilities.slicing": ("distdl.utilities", "tensor_decomposition"),
    f"{HERE}.pytagi.nn.layers": (
        "pytagi.nn",
        "activation attention batch_norm conv2d convtranspose2d embedding layer_block layer_norm linear lstm pooling "
        "resnet_block rms_norm slinear slstm",
    ),
    "gridwise.checkpoint": ("torchdistx", "checkpoint"),
    "gridwise.deferred_init": ("torchdistx", "deferred_init"),
    "gridwise.fake": ("torchdistx", "fake"),
    "gridwise.nn.mixins.conv_mixin": ("distdl.nn.mixins", "conv_mixin"),
    "gridwise.nn.mixins.pooling_mixin": ("distdl.nn.mixins", "pooling_mixin"),
    "gridwise.optim.any_precision_adamw": ("torchdistx.optimizers", "anyprecision_optimizer"),
    "gridwise.optim.slowmo_hook": ("torchdistx.slowmo", "slowmo_comm"),
    "gridwise.tagi.cuda": ("pytagi", "cuda"),
    "gridwise.tagi.metric": ("pytagi", "metric"),
}

OLD_MODULES = {f"{package}.{name}": place for place, (package, names) in _SERVED_BY.items() for name in names.split()}
"""{old module: the module that replaces it}."""
