"""Build a model without its data, and make the data later: all of it, a part of it, or one worker's blocks of it."""

from gridwise.deferred_init.api import deferred_init as deferred_init
from gridwise.deferred_init.api import is_deferred as is_deferred
from gridwise.deferred_init.api import materialize_module as materialize_module
from gridwise.deferred_init.api import materialize_shard as materialize_shard
from gridwise.deferred_init.api import materialize_tensor as materialize_tensor

__all__ = ["deferred_init", "is_deferred", "materialize_module", "materialize_shard", "materialize_tensor"]
