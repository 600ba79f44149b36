"""Build a model without its data, and create the data later: all of it, part of it, or only one worker's blocks.

    model = deferred_init(BigModel)                   # any size, no memory
    materialize_module(model)                         # everything, or
    materialize_module(model, layout=my_blocks)       # only what this worker owns

With the same seed every tensor equals the eagerly built one bit for bit, whatever is materialised and in any order.

    recording      `recording/recorder.py` writes a tape (`recording/tape.py`) of the operators on fake tensors;
                   `recording/marking.py` and `random/streams.py` note where random operators start to draw
    replaying      `recording/replaying.py` runs the part of the tape that is needed; `materializing.py` puts the
                   results in place
    blocks         `blocks.py` replays on one block only; `random/fills.py` makes a block of a random fill;
                   `rounding.py` knows which operators round a block like the whole; `sharding.py` reads slices and
                   layouts
    the generator  `random/generator.py` and `random/jump.py` implement the Mersenne Twister, `random/draws.py` counts
                   the numbers that an operator draws
"""

from gridwise.deferred_init.api import deferred_init as deferred_init
from gridwise.deferred_init.api import is_deferred as is_deferred
from gridwise.deferred_init.api import materialize_module as materialize_module
from gridwise.deferred_init.api import materialize_shard as materialize_shard
from gridwise.deferred_init.api import materialize_tensor as materialize_tensor
from gridwise.deferred_init.api import reason_for_whole as reason_for_whole
