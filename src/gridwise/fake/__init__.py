"""Fake tensors: the size, strides, dtype and device of a real tensor, and no data.

    with fake_mode():
        model = BigModel()          # any size, no memory

Fakes outlive the mode, and every operation on them gives fakes. Shapes come from torch's meta kernels. `tensor.py` is
the tensor, `dispatch.py` decides what an operator on fakes returns, `mode.py` makes factories return fakes,
`parameters.py` handles what depends on a parameter's class: subclasses of Parameter, Lazy modules.
`gridwise.deferred_init` builds its recording on them.
"""

from gridwise.fake.mode import fake_mode as fake_mode
from gridwise.fake.tensor import is_fake as is_fake
from gridwise.fake.tensor import meta_like as meta_like
