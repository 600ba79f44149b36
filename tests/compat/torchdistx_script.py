"""A script as torchdistX's users wrote them: fakes, deferred modules in FSDP, hooks, slow momentum, checkpoints."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torchdistx import checkpoint, fake
from torchdistx.deferred_init import deferred_init, is_deferred, materialize_module, materialize_tensor
from torchdistx.gossip_grad import GossipGraDState, Topology, get_num_modules, gossip_grad_hook
from torchdistx.optimizers import AnyPrecisionAdamW
from torchdistx.slowmo.slowmo_comm import SlowMoState, slowmo_hook
from torchdistx.slowmo.slowmo_optimizer import SlowMomentumOptimizer

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.norm = nn.BatchNorm1d(width)
        self.last = nn.Linear(width, 2)
        self.tied = self.last.weight

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


def eager():
    torch.manual_seed(7)
    return Net(3)


def deferred():
    torch.manual_seed(7)
    return deferred_init(Net, width=3)


def fakes():
    with fake.fake_mode():
        large = nn.Linear(1_000_000, 100_000)
    assert fake.is_fake(large.weight)
    assert not fake.is_fake(torch.ones(1))
    assert fake.meta_like(large.weight).device.type == "meta"
    assert "fake=True" in repr(large.weight.data)
    with fake.fake_mode(fake_cuda=True):
        on_gpu = nn.Linear(10, 10, device="cuda")
    assert on_gpu.weight.device.type == "cuda"


def modules():
    model = deferred()
    assert is_deferred(model)
    assert is_deferred(model.first.weight)
    materialize_module(model, buffers_only=True)
    assert not is_deferred(model.norm.running_mean)
    assert is_deferred(model.norm.weight)
    materialize_module(model, check_fn=lambda module: module is model.last)
    assert is_deferred(model.first)
    assert not is_deferred(model.last)
    weight = materialize_tensor(model.first.weight)
    assert materialize_tensor(weight) is weight
    materialize_module(model)
    for name, value in eager().state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def wrapped():
    """torch looks for torchdistX by itself, and lets it make the parameters of a module that FSDP is given."""
    rank = dist.get_rank()
    x = torch.arange(12.0).reshape(3, 4) + rank
    right = eager()
    with torch.no_grad():
        y = FSDP(deferred(), device_id=CPU)(x)
    torch.testing.assert_close(y, right(x))

    def make(module):
        materialize_module(module, check_fn=lambda inner: not isinstance(inner, FSDP))

    by_hand = FSDP(deferred(), device_id=CPU, param_init_fn=make, sharding_strategy=ShardingStrategy.NO_SHARD)
    by_hand.register_comm_hook(SlowMoState(None, sync_grads=True), slowmo_hook)
    by_hand(x).square().sum().backward()
    right.zero_grad()
    for other in range(dist.get_world_size()):
        (
            eager_loss := right(torch.arange(12.0).reshape(3, 4) + other).square().sum() / dist.get_world_size()
        ).backward()
    del eager_loss
    whole = torch.cat([p.grad.flatten() for p in by_hand.parameters()])
    torch.testing.assert_close(whole, torch.cat([p.grad.flatten() for p in right.parameters()]), rtol=1e-4, atol=1e-5)


def gossip():
    nodes, _ = dist.new_subgroups(1)
    model = FSDP(deferred(), device_id=CPU, sharding_strategy=ShardingStrategy.NO_SHARD)
    state = GossipGraDState(get_num_modules(model), Topology.DISSEMINATION, nodes, dist.get_world_size())
    model.register_comm_hook(state, gossip_grad_hook)
    model(torch.ones(2, 4) * (dist.get_rank() + 1) * torch.tensor([[1.0], [2.0]])).square().sum().backward()
    mine = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.isfinite(mine).all()
    other = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(other, mine)
    torch.testing.assert_close(other[0], other[-1])  # of two nodes, both have the average


def optimizers(folder):
    model = eager()
    optimizer = SlowMomentumOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), slowmo_freq=2)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 4, generator=torch.Generator().manual_seed(step + 10 * dist.get_rank()))).sum().backward()
        optimizer.step()
    assert (optimizer.averager.step, optimizer.averager.period) == (3, 2)
    optimizer.averager.period = 5
    assert (optimizer.averager.period, optimizer.slowmo_freq) == (5, 2)
    weights = [torch.empty_like(model.first.weight) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, model.first.weight.detach())
    assert torch.equal(weights[0], weights[-1])
    AnyPrecisionAdamW(model.parameters(), lr=1e-3, use_kahan_summation=True).step()
    state = {"model": eager().state_dict()}
    checkpoint.save_state_dict(state_dict=state, storage_writer=checkpoint.FileSystemWriter(folder))
    found = {"model": {name: torch.zeros_like(value) for name, value in state["model"].items()}}
    checkpoint.load_state_dict(state_dict=found, storage_reader=checkpoint.FileSystemReader(folder))
    assert all(torch.equal(value, found["model"][name]) for name, value in state["model"].items())


if __name__ == "__main__":
    dist.init_process_group("gloo")
    fakes(), modules(), wrapped(), gossip(), optimizers(sys.argv[1])
    print("".join(["well ", str(dist.get_rank()), "\n"]), end="", flush=True)
    dist.destroy_process_group()
