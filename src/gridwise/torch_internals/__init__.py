"""Torch's private parts: what Gridwise needs of torch and torch does not promise to keep, each with a test of its own.

Nothing here knows of grids. Elsewhere in the package only what torch documents is used; `tests/torch_internals` looks.

versions       the versions of torch that the tests have seen
functions      calls of autograd Functions, however their `apply` was obtained
checkpoints    calls of `torch.utils.checkpoint`
operators      operators of the dispatcher: classes, names, schemas
"""
