"""Gossip gradients: Gridwise's own, which need no CUDA and leave Python's random generator alone."""

from gridwise.optim.gossip_grad import NOBODY as INVALID_PEER
from gridwise.optim.gossip_grad import GossipGraDState as GossipGraDState
from gridwise.optim.gossip_grad import Topology as Topology
from gridwise.optim.gossip_grad import get_num_modules as get_num_modules
from gridwise.optim.gossip_grad import gossip_grad_hook as gossip_grad_hook

__all__ = ["INVALID_PEER", "GossipGraDState", "Topology", "get_num_modules", "gossip_grad_hook"]
