"""One worker on a GPU against plain torch: training steps run eagerly, captured as CUDA graphs, and compiled.

    python benchmarks/captured.py [--models small large resnet] [--ways plain layers captured bf16 fp16 compiled] [--workers 2]

`layers` is a model built by hand from `gridwise.nn`; the other ways use `distribute`; `bf16` and `fp16` run under
autocast; `compiled`, which takes minutes, is not run by default. Each way is compared with torch run the same way: a
captured step with a captured one. The table also counts the kernels that a step launches; the goal is 1.3 times
torch's. Medians; every sample ends with the device idle.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import gridwise
from gpu import sampled
from gridwise.comm.launching.pool import Pool
from layers_norm import UNet
from run import NOTHING_HERE


class Bottleneck(torch.nn.Module):
    """Three convolutions, each with batch norm, and a shortcut."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        sizes = [(before, width, 1, 1), (width, width, 3, stride), (width, after, 1, 1)]
        parts: list[torch.nn.Module] = []
        for a, b, kernel, step in sizes:
            conv = torch.nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False)
            parts += [conv, torch.nn.BatchNorm2d(b), torch.nn.ReLU()]
        self.body = torch.nn.Sequential(*parts[:-1])
        self.shortcut = torch.nn.Sequential()
        if before != after or stride > 1:
            conv = torch.nn.Conv2d(before, after, 1, stride, bias=False)
            self.shortcut = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.shortcut(x)).relu()


class ResNet50(torch.nn.Sequential):
    """ResNet-50 for images."""

    def __init__(self) -> None:
        stem = [torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False), torch.nn.BatchNorm2d(64), torch.nn.ReLU()]
        blocks, before = [], 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for k in range(count):
                blocks.append(Bottleneck(before, width, stride if k == 0 else 1))
                before = 4 * width
        head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(2048, 1000)]
        super().__init__(*stem, torch.nn.MaxPool2d(3, 2, 1), *blocks, *head)


Model = tuple[Callable[[], torch.nn.Module], tuple[int, ...], int, float]
WAYS = ("plain", "layers", "captured", "bf16", "fp16", "compiled")
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
MODELS: dict[str, Model] = {
    "small": (lambda: UNet(16), (1, 3, 256, 256), 2, 1.15),
    "large": (lambda: UNet(64), (8, 3, 512, 512), 2, 1.02),
    "resnet": (ResNet50, (32, 3, 224, 224), 1000, 1.03),
}


def of_layers(model: torch.nn.Module, P_x: gridwise.CartesianPartition) -> torch.nn.Module:
    """The model with its torch layers replaced by distributed ones."""
    nn = gridwise.nn
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            new: Any = child
            if isinstance(child, torch.nn.Conv2d):
                sizes = child.kernel_size, child.stride, child.padding, child.dilation, child.groups
                new = nn.DistributedConv2d(P_x, child.in_channels, child.out_channels, *sizes, child.bias is not None)
            elif isinstance(child, torch.nn.BatchNorm2d):
                new = nn.DistributedBatchNorm2d(P_x, child.num_features)
            elif isinstance(child, torch.nn.MaxPool2d):
                new = nn.DistributedMaxPool2d(P_x, child.kernel_size, child.stride, child.padding)
            elif isinstance(child, torch.nn.Upsample):
                new = nn.DistributedUpsample(P_x, scale_factor=child.scale_factor, mode=child.mode)
            setattr(parent, name, new.cuda())
    return model


def step_of(
    model: torch.nn.Module, loss: torch.nn.Module, shape: tuple[int, ...], classes: int, half: torch.dtype | None = None
) -> Any:
    """A training step and its inputs on CUDA, under autocast to `half` if given."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(shape, device="cuda")
    with torch.no_grad():
        rows = model(x)
    target = torch.randint(classes, (rows.shape[0], *rows.shape[2:]), device="cuda")

    def step(x: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", half or torch.bfloat16, enabled=half is not None):
            found = loss(model(x), target)
        found.backward()
        optimizer.step()
        return found.detach()

    return step, (x, target)


def captured_by_torch(step: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    """Plain torch's step as a CUDA graph, used like ours: inputs copied in, the loss copied out."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    static, graph = [x.clone() for x in inputs], torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(*static)

    def replay() -> Tensor:
        torch._foreach_copy_(static, list(inputs))
        graph.replay()
        return loss.clone()

    return replay


def launches(run: Callable[[], object]) -> int:
    """The number of kernels that a step launches."""
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as seen:
        run()
    return sum(event.count for event in seen.key_averages() if "LaunchKernel" in event.key)


def rows(name: str, ways: list[str], rounds: int) -> Iterator[tuple[str, ...]]:
    make, shape, classes, goal = MODELS[name]
    P_x = gridwise.world().create_cartesian_topology_partition([1] * len(shape))
    torch.manual_seed(0)
    plain = make().cuda()
    model = gridwise.distribute(copy.deepcopy(plain), P_x, example=(shape,))
    losses = [gridwise.nn.DistributedCrossEntropyLoss(model.P_y), torch.nn.CrossEntropyLoss()]
    for way in ways:
        sides, counts = [], []
        built = of_layers(make().cuda(), P_x) if way == "layers" else model
        for each, loss in zip((built, plain), losses, strict=True):
            called: Any = torch.compile(each) if way == "compiled" else each
            step, inputs = step_of(called, loss, shape, classes, HALVES.get(way))
            if way == "captured":
                run: Any = captured_by_torch(step, inputs)
                if each is model:
                    ours = gridwise.capture(step)
                    run = lambda ours=ours, inputs=inputs: ours(*inputs)  # noqa: E731
            else:
                run = lambda step=step, inputs=inputs: step(*inputs)  # noqa: E731
            for _ in range(5):
                run()
            sides.append(run)
            counts.append(launches(run))
        ours, limit = sampled(sides, rounds, 5)
        aim = 1.05 if way in ("captured", "compiled") else goal
        words = f"{ours * 1e3:.2f}", f"{limit * 1e3:.2f}", f"{ours / limit:.3f}", f"{aim:.2f}"
        yield f"{name} {shape}", way, *words, f"{counts[0]} / {counts[1]}"


SHARED = {"small": ((1, 3, 256, 128), 16, 2.5), "large": ((4, 3, 256, 512), 64, 1.15)}
"""For several workers on one GPU: the block of each, the width of the U-Net, and the largest acceptable ratio."""


def shared(name: str, workers: int, rounds: int) -> list[tuple[str, ...]]:
    """Several workers on one GPU, captured (between communications) and not; the limit has no communication."""
    P_x = gridwise.world().create_cartesian_topology_partition([1, 1, 1, workers])
    torch.manual_seed(0)
    block, width, goal = SHARED[name]
    plain = UNet(width).cuda()
    model = gridwise.distribute(copy.deepcopy(plain), P_x, example=((*block[:-1], block[-1] * workers),))
    step, inputs = step_of(model, gridwise.nn.DistributedCrossEntropyLoss(model.P_y), block, 2)
    limit, _ = step_of(plain, torch.nn.CrossEntropyLoss(), block, 2)
    captured = gridwise.capture(step)
    for _ in range(5):
        captured(*inputs)
    sides = [lambda: captured(*inputs), lambda: step(*inputs), lambda: limit(*inputs)]
    *ours, least = sampled(sides, rounds, 5)
    title = f"{name}, {workers} workers, blocks {block}"
    return [
        (title, way, f"{spent * 1e3:.2f}", f"{least * 1e3:.2f}", f"{spent / least:.3f}", f"{goal:.2f}", what)
        for way, spent, what in zip(("captured", "plain"), ours, (f"{captured.graphs} graphs", "-"), strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--ways", nargs="*", default=list(WAYS[:-1]), choices=WAYS)
    parser.add_argument("--workers", nargs="*", type=int, default=[2], help="that share the GPU, over gloo")
    parser.add_argument("--shared", nargs="*", default=list(SHARED), choices=SHARED, help="what they compute")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        sys.exit(NOTHING_HERE)
    columns = "ours ms", "limit ms", "ratio", "goal", "kernels, ours / torch's"
    table = Table("step", "way", *columns, title=torch.cuda.get_device_name())
    for name in arguments.models:
        for row in rows(name, arguments.ways, arguments.rounds):
            print(*row, sep=" | ", file=sys.stderr, flush=True)
            table.add_row(*row)
    for workers in arguments.workers:
        for name in arguments.shared:
            with Pool(workers, "gloo") as pool:
                for row in pool.run(shared, name, workers, arguments.rounds)[0]:
                    table.add_row(*row)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
