"""The calls of tables/claims.py in other libraries, on processes of this machine, compared with torch's own results.

    python -m conformance.peers dtensor          # torch's
    python -m conformance.peers shard_tensor     # where nvidia-physicsnemo is installed; Gridwise need not be

Workers are processes over gloo, one group of them for each case: some cases abort or hang the processes. Outputs and all
gradients are gathered and compared in float64. Written to conformance/results/peers; the page shows them.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from .tables.calls import module_of, tensors_of
from .tables.claims import TABLES
from .tables.table import Case, cases

FOLDER = Path(__file__).parent / "results" / "peers"
EXACT = 1e-9
PATIENCE = 180.0
"""Seconds that a case may take."""
PRELOADED = {"dtensor": (), "shard_tensor": ("physicsnemo.domain_parallel.shard_utils.knn", "physicsnemo.nn")}
"""Imported once, beside torch, in the process from which workers are forked."""
Scatter = Callable[[Tensor, Any, list[Any]], Any]


def dtensor() -> tuple[str, str, Scatter]:
    """Title, version, and what scatters a tensor."""
    from torch.distributed.tensor import distribute_tensor

    def scatter(x: Tensor, mesh: Any, placements: list[Any]) -> Any:
        return distribute_tensor(x, mesh, placements).requires_grad_()

    return "DTensor", f"torch {torch.__version__.partition('+')[0]}", scatter


def shard_tensor() -> tuple[str, str, Scatter]:
    """The same; its handlers are registered, which it does by itself only where there is a GPU."""
    import physicsnemo
    from physicsnemo import domain_parallel

    domain_parallel.register_custom_ops()

    def scatter(x: Tensor, mesh: Any, placements: list[Any]) -> Any:
        return domain_parallel.scatter_tensor(x, 0, mesh, tuple(placements), requires_grad=True)

    return "ShardTensor", f"PhysicsNeMo {physicsnemo.__version__}, torch {torch.__version__.partition('+')[0]}", scatter


LIBRARIES = {"dtensor": dtensor, "shard_tensor": shard_tensor}


def worker(library: str, number: int, rank: int, size: int, port: int, told: str) -> None:
    """One worker of a case; it writes what it saw."""
    from torch import distributed as dist

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    case = list(cases(TABLES))[number]
    try:
        scatter = LIBRARIES[library]()[2]
        dist.init_process_group("gloo", rank=rank, world_size=size)
        if library == "shard_tensor":
            from physicsnemo.distributed import DistributedManager

            with patch.object(dist, "init_process_group"):  # it would ask for one on an accelerator
                DistributedManager.setup(rank, size, rank, port=str(port), backend="gloo")
        outcome = compared(case, scatter)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        outcome = ("raises", f"{type(error).__name__}: {lines[0] if lines else ''}"[:200])
    Path(told, str(rank)).write_text(json.dumps(outcome))
    os._exit(0)  # without waiting for workers that wait themselves


def compared(case: Case, scatter: Scatter) -> tuple[str, str]:
    """The outcome on this worker: "right", "gathers" (right, of a whole output), or "wrong"."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_module

    torch.manual_seed(0)
    module = module_of(case)
    tensors = [x.requires_grad_() for x in tensors_of(case)]
    expected = copy.deepcopy(module)(*tensors)
    g = torch.randn(expected.shape, dtype=expected.dtype, generator=torch.Generator().manual_seed(1))
    reference = copy.deepcopy(module)
    reference(*tensors).backward(g)
    mesh = init_device_mesh("cpu", tuple(workers for _, workers in case.cut))
    placements = [Shard(dim) for dim, _ in case.cut]
    own = [
        scatter(x.detach(), mesh, placements if i in case.table.cut_tensors else [Replicate()] * len(placements))
        for i, x in enumerate(tensors)
    ]
    distributed = distribute_module(module, mesh)
    y = distributed(*own)
    whole = all(isinstance(placement, Replicate) for placement in y.placements)
    errors = {"output": difference(y.full_tensor(), expected)}
    if errors["output"] < EXACT:
        try:
            (y.full_tensor() * g).sum().backward()
        except Exception as error:
            raise RuntimeError(f"in backward: {error}") from error
        pairs = [*zip(own, tensors, strict=True), *zip(distributed.parameters(), reference.parameters(), strict=True)]
        for i, (got, wanted) in enumerate(pairs):
            errors[f"gradient {i}"] = difference(whole_of(got.grad), wanted.grad)
    name, worst = max(errors.items(), key=lambda pair: pair[1])
    if worst > EXACT:
        return "wrong", f"{name}: {worst:.1e}"
    return ("gathers" if whole else "right"), ""


def whole_of(x: Any) -> Tensor | None:
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def difference(got: Tensor | None, wanted: Tensor | None) -> float:
    if got is None or wanted is None or got.shape != wanted.shape:
        return 0.0 if got is wanted else float("inf")
    got, wanted = got.detach(), wanted.detach()
    return float(((got - wanted).abs() / wanted.abs().max().clamp(min=1)).max())


def outcome_of(library: str, number: int, size: int) -> tuple[str, str]:
    """What came of a case on processes that are started for it: the worst that a worker saw."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.tensor", *PRELOADED[library]])
    with tempfile.TemporaryDirectory() as told:
        own = [context.Process(target=worker, args=(library, number, rank, size, port, told)) for rank in range(size)]
        for process in own:
            process.start()
        for process in own:
            process.join(PATIENCE)
        hung = any(process.is_alive() for process in own)
        for process in own:
            process.kill()
            process.join()
        seen = [tuple(json.loads(path.read_text())) for path in sorted(Path(told).iterdir())]
    order = ("wrong", "raises", "gathers", "right")
    worst = min(seen, key=lambda outcome: order.index(outcome[0]), default=("", ""))
    if len(seen) < size and worst[0] not in ("wrong", "raises"):
        return ("hangs", "") if hung else ("aborts", f"exit codes {[process.exitcode for process in own]}")
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--part", default="", help="of the names of cases")
    arguments = parser.parse_args()
    title, version, _ = LIBRARIES[arguments.library]()
    found = {}
    for number, case in enumerate(cases(TABLES)):
        if arguments.part in case.name:
            size = 1
            for _, workers in case.cut:
                size *= workers
            found[case.name] = outcome_of(arguments.library, number, size)
            print(*found[case.name], case.name, sep=": ", flush=True)
    if not arguments.part:
        FOLDER.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"library": title, "version": version, "cases": found}, indent=1)
        (FOLDER / f"{arguments.library}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
