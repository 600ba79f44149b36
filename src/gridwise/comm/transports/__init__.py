"""What moves data between workers.

base                the interface, and what all transports share: staging, packing, errors that name a worker
mpi                 mpi4py
torch_distributed   gloo and nccl
solo                one process, nobody to talk to
counting            any number of pretended workers, counted
"""
