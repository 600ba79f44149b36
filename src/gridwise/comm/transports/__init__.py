"""What moves data between workers.

base                the interface, and what all transports share: packing, wire dtypes, errors that name a worker
data_path           through the memory of this machine or by the library, staged through the host; what a transport writes
mpi                 mpi4py
torch_distributed   gloo and nccl
solo                one process, nobody to talk to
counting            any number of pretended workers, counted
"""
