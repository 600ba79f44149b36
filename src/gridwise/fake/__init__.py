"""Tensors that pretend: size, strides, dtype and device of a real one, and no data.

    with fake_mode():
        model = BigModel()          # any size, no memory

Fakes outlive the mode and stay fake in every operation. They rest on torch's meta kernels; `tensor.py` is the tensor,
`dispatch.py` decides what an operator on fakes gives, `mode.py` makes the factories give fakes, `parameters.py` keeps
what torch decides by class: subclasses of Parameter, Lazy modules. `gridwise.deferred_init` records on top of them.
"""

from gridwise.fake.mode import fake_mode as fake_mode
from gridwise.fake.tensor import is_fake as is_fake
from gridwise.fake.tensor import meta_like as meta_like
