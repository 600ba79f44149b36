"""Deferred initialisation: Gridwise's own. What is made equals eager construction bit for bit; torchdistX's did not."""

from gridwise.deferred_init import deferred_init as deferred_init
from gridwise.deferred_init import is_deferred as is_deferred
from gridwise.deferred_init import materialize_module as materialize_module
from gridwise.deferred_init import materialize_tensor as materialize_tensor
