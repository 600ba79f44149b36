"""Loading into a state: what does not fit, other dtypes, tensors without memory, and how much memory it takes."""

from __future__ import annotations

import copy
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import line, split
from crew import crew
from test_manifest_parser import sealed, tree_of
from torch import nn
from training import Net, training

from gridwise import checkpoint
from gridwise.checkpoint import PerWorker
from gridwise.errors import CheckpointMismatch, CheckpointNotFound
from gridwise.partition import Partition


def test_errors_say_what_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "c"
    checkpoint.save(path, {"net": nn.Linear(3, 2), "step": 1, "list": [torch.ones(1)]})
    before = torch.full((2, 3), 9.0)
    cases: list[tuple[Any, str]] = [
        ({"net": {"weight": before, "other": torch.ones(1)}}, "'net/other' is not in the checkpoint"),
        ({"net": {"weight": torch.ones(3, 2)}}, r"global shape \[2, 3\] in the checkpoint, \[3, 2\]"),
        ({"net": {"weight": torch.ones(2, 3).double()}}, "float32 in the checkpoint, torch.float64"),
        ({"step": torch.ones(1)}, "plain value in the checkpoint"),
        ({"list": [torch.ones(1), torch.ones(1)]}, "2 items in `into`, 1 in the checkpoint"),
        ({"net": nn.Linear(3, 2, bias=False)}, "only in the checkpoint: 'net/bias'"),
        ({"net": nn.Sequential(nn.Linear(3, 2))}, "only in `into`: 'net/0.bias'"),
        ({"net": {"weight": torch.ones(1, 1).expand(2, 3)}}, "expanded"),
        ({"step": PerWorker(1)}, "saved as one value for all"),
        ({"opt": torch.optim.SGD(nn.Linear(1, 1).parameters())}, "belong to no module"),
        (3, "must be a dict"),
    ]
    for into, text in cases:
        with pytest.raises(CheckpointMismatch, match=text):
            checkpoint.load(path, into)
    assert torch.equal(before, torch.full((2, 3), 9.0))
    with pytest.raises(CheckpointNotFound, match="nothing exists there"):
        checkpoint.load(tmp_path / "no", {})
    with pytest.raises(CheckpointNotFound, match=r"no manifest\.json"):
        checkpoint.load(tmp_path, {})


def test_cast_converts(tmp_path: Path) -> None:
    x = torch.randn(40, 30, dtype=torch.float64)
    checkpoint.save(tmp_path / "c", {"x": x})
    into = {"x": torch.zeros(40, 30, dtype=torch.bfloat16)}
    checkpoint.load(tmp_path / "c", into, cast=True)
    assert torch.equal(into["x"], x.bfloat16())


def test_autograd_notices_that_a_saved_tensor_was_overwritten(tmp_path: Path) -> None:
    x = torch.ones(3)
    checkpoint.save(tmp_path / "c", {"x": x})
    y = (x * torch.ones(3, requires_grad=True)).sum()
    checkpoint.load(tmp_path / "c", {"x": x})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_parameters_on_the_meta_device_are_made_only_in_part(tmp_path: Path) -> None:
    whole = torch.randn(8, 5)
    bias = torch.randn(8)
    checkpoint.save(tmp_path / "c", {"weight": whole, "bias": bias})

    def loads(P: Partition) -> None:
        net = nn.Linear(5, 8, device="meta")
        layout = line(P, (8, 5))
        block = layout.block(P.transport.rank)
        net.weight = split(torch.empty(8, 5, device="meta"), layout, P.transport.rank)
        checkpoint.load(tmp_path / "c", net, P)
        assert torch.equal(net.weight.detach(), whole[block.slices])
        assert net.weight.placement == layout
        assert net.weight.requires_grad
        assert isinstance(net.bias, nn.Parameter)
        assert torch.equal(net.bias.detach(), bias)

    crew(3, loads)


class FormerSplitParameter(nn.Parameter):
    """A block that carries its placement by the name of 0.1."""

    layout = None


def test_placements_by_their_former_name_are_taken_with_a_warning(tmp_path: Path) -> None:
    whole = torch.randn(8, 5)

    def saves_and_loads(P: Partition) -> None:
        rank, layout = P.transport.rank, line(P, (8, 5))
        mine = layout.block(rank).slices
        net = nn.Linear(5, 8, bias=False)
        net.weight = FormerSplitParameter(whole[mine].clone())
        net.weight.layout = layout
        checkpoint.save(tmp_path / "c", net, P)
        net.weight = FormerSplitParameter(torch.empty_like(whole[mine], device="meta"))
        net.weight.layout = layout
        checkpoint.load(tmp_path / "c", net, P)
        assert torch.equal(net.weight.detach(), whole[mine])
        assert isinstance(net.weight, FormerSplitParameter)
        assert net.weight.layout == layout

    with pytest.warns(DeprecationWarning, match=r"a FormerSplitParameter carries its Layout as `.layout`"):
        crew(2, saves_and_loads)
    target = {"weight": torch.empty(8, 5)}
    checkpoint.load(tmp_path / "c", target)
    assert torch.equal(target["weight"], whole)


def test_a_deferred_module_is_made_by_the_load(tmp_path: Path) -> None:
    deferring = pytest.importorskip("gridwise.deferred_init")
    state = training(torch.optim.Adam)
    checkpoint.save(tmp_path / "c", {"net": state["net"]})
    net = deferring.deferred_init(Net)
    with pytest.raises(CheckpointMismatch, match="deferred"):
        checkpoint.save(tmp_path / "d", {"net": net})
    before = torch.get_rng_state()
    checkpoint.load(tmp_path / "c", {"net": net})
    assert torch.equal(torch.get_rng_state(), before)  # nothing was initialised
    assert not deferring.is_deferred(net)
    assert net.tied is net.body[2].weight
    for key, value in state["net"].named_parameters():
        assert torch.equal(net.get_parameter(key), value)


def test_a_load_needs_little_memory_besides_the_state(tmp_path: Path) -> None:
    """In a program of its own: 200 MiB are saved and loaded in place, the largest resident size grows by less than 64."""
    program = textwrap.dedent("""
        import resource, sys, torch
        from gridwise import checkpoint
        state = {f"t{i}": torch.full((5_000_000,), float(i)) for i in range(10)}
        checkpoint.save(sys.argv[1] + "/first", {"x": torch.ones(10)})
        checkpoint.load(sys.argv[1] + "/first")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        checkpoint.save(sys.argv[1] + "/c", state)
        saved = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for x in state.values():
            x.zero_()
        checkpoint.load(sys.argv[1] + "/c", state)
        loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert all((x == i).all() for i, x in enumerate(state.values()))
        assert saved - before < 16 << 10, (before, saved)
        assert loaded - before < 64 << 10, (before, loaded)
    """)
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=120)


@pytest.mark.parametrize(
    ("size", "stride", "overlaps"),
    [
        ((2, 3), (1, 1), True),
        ((3, 3), (2, 1), True),
        ((2, 3), (0, 1), True),
        ((2, 2, 2), (3, 2, 1), True),
        ((2, 3), (3, 2), False),  # woven into one another, and yet each has a place of its own
        ((3, 2), (1, 3), False),
        ((3, 1), (1, 0), False),
    ],
)
def test_a_target_whose_elements_share_places_is_refused(
    tmp_path: Path, size: tuple[int, ...], stride: tuple[int, ...], overlaps: bool
) -> None:
    saved = torch.arange(1.0, 1 + torch.Size(size).numel()).view(size)
    checkpoint.save(tmp_path / "c", {"other": torch.ones(2), "x": saved})
    memory = torch.zeros(20)
    into = {"other": torch.zeros(2), "x": memory.as_strided(size, stride)}
    if overlaps:
        with pytest.raises(CheckpointMismatch, match=r"'x' of `into`.*share one place"):
            checkpoint.load(tmp_path / "c", into)
        assert not memory.any()
        assert not into["other"].any()
    else:
        checkpoint.load(tmp_path / "c", into)
        assert torch.equal(into["x"], saved)


def test_an_optimisers_state_whose_elements_share_places_is_refused(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    optimiser = torch.optim.SGD(net.parameters(), momentum=0.9)
    optimiser.state[net.weight]["momentum_buffer"] = torch.ones(2, 3)
    checkpoint.save(tmp_path / "c", {"net": net, "optim": optimiser})
    optimiser.state[net.weight]["momentum_buffer"] = torch.zeros(9).as_strided((2, 3), (1, 1))
    with pytest.raises(CheckpointMismatch, match="share one place"):
        checkpoint.load(tmp_path / "c", {"net": net, "optim": optimiser})


# Optimisers of another kind

KINDS: dict[str, Any] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "plain SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": torch.optim.RMSprop,
}


def stepped(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    optimiser = KINDS[kind](net.parameters())
    net(torch.ones(3)).sum().backward()
    optimiser.step()
    return net, optimiser


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_the_state_of_one_kind_of_optimiser_does_not_go_into_another(tmp_path: Path, source: str, target: str) -> None:
    net, optimiser = stepped(source)
    checkpoint.save(tmp_path / "c", {"net": net, "optim": optimiser})
    other_net, other = stepped(target)
    before = copy.deepcopy((other_net.state_dict(), other.state_dict()))
    if type(other) is type(optimiser):
        checkpoint.load(tmp_path / "c", {"net": other_net, "optim": other})
        assert str(other.state_dict()) == str(optimiser.state_dict())
        return
    with pytest.raises(
        CheckpointMismatch, match=f"optimiser {type(optimiser).__name__}, and {type(other).__name__} in"
    ):
        checkpoint.load(tmp_path / "c", {"net": other_net, "optim": other})
    assert str((other_net.state_dict(), other.state_dict())) == str(before)


def test_a_checkpoint_that_does_not_say_its_kind_is_judged_by_the_names_of_its_options(tmp_path: Path) -> None:
    """Versions before this one did not note it."""
    net, optimiser = stepped("AdamW")
    path = tmp_path / "c"
    checkpoint.save(path, {"net": net, "optim": optimiser})
    tree = tree_of(path)
    del tree["values"]["optim/kind"]
    tree["values"]["optim/groups/#0/initial_lr"] = 0.1  # as a scheduler adds it
    (path / "manifest.json").write_bytes(sealed(tree))
    other_net, other = stepped("SGD")
    with pytest.raises(CheckpointMismatch, match=r"(?s)options.*'betas'"):
        checkpoint.load(path, {"net": other_net, "optim": other})
    net, optimiser = stepped("AdamW")
    checkpoint.load(path, {"net": net, "optim": optimiser})
    assert optimiser.param_groups[0]["initial_lr"] == 0.1


@pytest.mark.parametrize("value", [5, "text", torch.ones(3), [torch.ones(1), 2], [1], checkpoint.PerWorker(3)], ids=str)
def test_a_state_that_is_no_dict_has_no_name_to_be_stored_under(tmp_path: Path, value: Any) -> None:
    class Odd:
        def state_dict(self) -> Any:
            return value

        def load_state_dict(self, state: Any) -> None:
            raise AssertionError

    with pytest.raises(CheckpointMismatch, match="put it into a dict"):
        checkpoint.save(tmp_path / "c", Odd())
    assert not (tmp_path / "c").exists()


class Rotary(nn.Module):
    """A model with tensors that its state does not hold, as those of rotary embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("angles", 1.0 / (10000 ** (torch.arange(0, 4, 2).float() / 4)), persistent=False)
        self.register_buffer("steps", torch.zeros(2))
        self.register_buffer("first", self.steps[:1], persistent=False)  # sees what is loaded
        self.noise = torch.randn(3)
        self.all_weights = [self.linear.weight, {"bias": self.linear.bias}]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * torch.cat((self.angles, self.angles)) + self.noise[0] + self.first


def test_what_the_state_of_a_deferred_module_does_not_hold_is_made_too(tmp_path: Path) -> None:
    torch.manual_seed(1)
    saved = Rotary()
    saved.steps += 5
    checkpoint.save(tmp_path / "c", {"net": saved})
    torch.manual_seed(2)
    eager = Rotary()
    checkpoint.load(tmp_path / "c", {"net": eager})
    torch.manual_seed(2)
    deferring = pytest.importorskip("gridwise.deferred_init")
    net = deferring.deferred_init(Rotary)
    weight = net.linear.weight
    checkpoint.load(tmp_path / "c", {"net": net})
    assert not deferring.is_deferred(net)
    assert not net.angles.is_meta
    assert torch.equal(net(torch.ones(4)), eager(torch.ones(4)))
    assert net.linear.weight is weight  # whoever held the deferred one holds the loaded one
    assert net.all_weights[0] is net.linear.weight
    assert net.all_weights[1]["bias"] is net.linear.bias
    assert torch.equal(net.noise, eager.noise)
    net.steps.fill_(9)
    assert net.first.item() == 9
