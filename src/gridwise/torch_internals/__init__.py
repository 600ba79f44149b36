"""Torch's private parts: what Gridwise needs of torch and torch does not promise to keep, each with a test of its own.

Nothing here knows of grids. Elsewhere in the package only what torch documents is used; `tests/torch_internals` looks.

versions       the versions of torch that the tests have seen
functions      calls of autograd Functions, however their `apply` was obtained
checkpoints    calls of `torch.utils.checkpoint`
operators      operators of the dispatcher: classes, names, schemas and kernels
modes          what acts on all operators called in a body: modes, hooks of saved tensors, transforms
switches       switches of autograd and autocast, as nodes of a graph
decompositions  operators that torch can write as others
tracer         torch's tracer, and the fake tensors that it runs on
tensors        what tensors, storages and generators do not tell or do in public
meta_kernels   on which device kernels for meta tensors take them to be
modules        hooks of modules, calls that are never compiled
autograd       nodes of autograd, gradients in one message, the norm that torch clips them by
compiler       the compiler around a call, without importing it; a graph as machine code
page_pool      an allocator for tensors of the CPU, in C++
distributed    whole checkpoints of torch.distributed, blocks of its tensors; `comm_hooks`: its hooks for gradients
"""
