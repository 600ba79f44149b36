"""One device: models run tile by tile, on inputs of any size, in bounded memory, with the same numbers.

tiled      the user's entry point, and the model that it makes; `limits`: what the user allows
runner     recorded and scheduled once for inputs of one structure, then run
lowering   a recording as operators on boxes (`graph`), without writes (`views`)
schedule   which values are stored, and how large tiles are (`cone`: what a tile needs; `footprint`: what it holds)
execute    forward, tile by tile, and backward (`differentiate`); `arrays`: what is stored, and where; `targets`: where
           results go
autograd_node        a call as one node of autograd; `autograd_functions`: backwards that the model's own code says
plan       what a call will do, and how long it takes (`timing`)
"""

from .plan import TilePlan as TilePlan
from .tiled import TiledModel as TiledModel
from .tiled import tiled as tiled
