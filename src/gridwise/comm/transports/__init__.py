"""Transports: what moves data between workers.

base                the interface, and what all transports share: packing, wire dtypes, errors that name a worker
data_path           the choice between shared memory, the library and staging; the methods that a transport implements
mpi                 mpi4py
torch_distributed   gloo and nccl
fresh_store         of torchrun, under keys that no earlier start of a job has used
solo                a single process
counting            any number of simulated workers, whose traffic is counted
"""
