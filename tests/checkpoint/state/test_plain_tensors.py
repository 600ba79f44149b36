"""Which tensors of a dict are plain: no others, all of them, in their order, each with its own kind."""

from __future__ import annotations

import torch
from torch import Tensor

from gridwise.checkpoint.state.plain_tensors import plain_of

HERE = {
    "a": torch.ones(2, 3),
    "like a": torch.ones(2, 3),
    "another shape": torch.ones(3, 2),
    "like a again": torch.nn.Parameter(torch.ones(2, 3)),
    "another dtype": torch.ones(2, 3, dtype=torch.float64),
    "scalar": torch.tensor(1),
    "complex": torch.ones(2, dtype=torch.complex64),
    "a view": torch.ones(4, 3)[1:3],
}

ELSEWHERE: dict[str, object] = {
    "turned": torch.ones(3, 2).t(),
    "expanded": torch.ones(3).expand(2, 3),
    "conjugated": torch.ones(2, dtype=torch.complex64).conj(),
    "negated": torch.ones(1, dtype=torch.complex64).conj().imag,
    "empty": torch.ones(2, 0),
    "an empty view": torch.ones(4)[2:2],
    "on no device": torch.ones(2, 3, device="meta"),
    "sparse": torch.eye(2).to_sparse(),
    "of a dtype that is not stored": torch.ones(2, dtype=torch.uint8).view(torch.bits8),
    "of another class": torch.Tensor._make_subclass(type("Other", (Tensor,), {}), torch.ones(2, 3)),
    "without its memory": torch.ones(2, 3),
    "no tensor": 3,
}
ELSEWHERE["without its memory"].untyped_storage().resize_(0)  # type: ignore[attr-defined]


def mixed() -> dict[str, object]:
    names = sorted([*HERE, *ELSEWHERE], key=lambda name: name[::-1])
    return {name: HERE.get(name, ELSEWHERE.get(name)) for name in names}


def test_the_plain_ones_are_found_in_their_order() -> None:
    items = mixed()
    plain, rest = plain_of(items)
    assert plain.names == [name for name in items if name in HERE]
    assert list(rest) == [name for name in items if name in ELSEWHERE]
    assert all(rest[name] is items[name] for name in rest)


def test_each_has_its_own_kind_and_place() -> None:
    for items in (HERE, mixed()):
        plain, _ = plain_of(items)
        assert [id(x) for x in plain.tensors] == [id(items[name]) for name in plain.names]
        assert plain.addresses == [x.data_ptr() for x in plain.tensors]
        assert plain.shapes == [tuple(x.shape) for x in plain.tensors]
        assert plain.sizes == [x.nbytes for x in plain.tensors]
        codes = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.complex64: "C64"}
        assert plain.codes == [codes[x.dtype] for x in plain.tensors]


def test_of_nothing_there_is_nothing() -> None:
    plain, rest = plain_of({})
    assert not plain.names
    assert not plain.kinds
    assert not rest
