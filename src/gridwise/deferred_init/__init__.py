"""Build a model without its data, and make the data later: all of it, a part of it, or one worker's blocks of it.

    model = deferred_init(BigModel)                   # any size, no memory
    materialize_module(model)                         # everything, or
    materialize_module(model, layout=my_blocks)       # only what this worker owns

With the same seed every tensor equals eager construction bit for bit, whatever is made and in whatever order.

    recording      `recording/recorder.py` writes a tape (`recording/tape.py`) of what happens to fake tensors;
                   `recording/marking.py` and `random/streams.py` note where random operators begin to draw
    replaying      `recording/replaying.py` runs the part of the tape that is needed; `materializing.py` puts the
                   results in place
    blocks         `blocks.py` replays on a block alone; `random/fills.py` makes a block of a random fill; `rounding.py`
                   knows which operators round a block as they do the whole; `sharding.py` reads slices and layouts
    the generator  `random/generator.py` and `random/jump.py` know the Mersenne Twister, `random/draws.py` how many
                   numbers an operator takes
"""

from gridwise.deferred_init.api import deferred_init as deferred_init
from gridwise.deferred_init.api import is_deferred as is_deferred
from gridwise.deferred_init.api import materialize_module as materialize_module
from gridwise.deferred_init.api import materialize_shard as materialize_shard
from gridwise.deferred_init.api import materialize_tensor as materialize_tensor
from gridwise.deferred_init.api import reason_for_whole as reason_for_whole
