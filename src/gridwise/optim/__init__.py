"""What optimisation needs beyond torch when parameters lie on a grid, or when workers synchronise only now and then.

`GradScaler` makes one decision for all workers. `SlowMomentumOptimizer` lets replicas diverge for some steps; `slowmo_hook`
averages gradients inside a node, `gossip_grad_hook` also with one other node. `AnyPrecisionAdamW` trains in bfloat16.
`cut_states` makes an optimiser whose states are cut over the workers.
"""

from .any_precision_adamw import AnyPrecisionAdamW as AnyPrecisionAdamW
from .cut_states import cut_states as cut_states
from .gossip_grad import GossipGraDState as GossipGraDState
from .gossip_grad import Topology as Topology
from .gossip_grad import get_num_modules as get_num_modules
from .gossip_grad import gossip_grad_hook as gossip_grad_hook
from .grad_scaler import GradScaler as GradScaler
from .slow_momentum import SlowMomentumOptimizer as SlowMomentumOptimizer
from .slowmo_hook import SlowMoState as SlowMoState
from .slowmo_hook import slowmo_hook as slowmo_hook
