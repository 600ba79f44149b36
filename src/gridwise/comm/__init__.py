"""Processes and the messages between them: the only code that communicates with other processes.

transports/    moving data: the base class, MPI, torch.distributed, a single process, and one that only counts
messages/      several views in one message, dtypes on the wire, repeated small exchanges, pending requests
node/          workers of one machine: shared memory and mailboxes, the same for every transport
supervision/   detecting workers that died, hang, are missing or make a different call, so that nobody waits for them
launching/     finding this process's transport; starting local workers from Python, and the pool they run in
agreement      how workers agree: do all make the same call, has anybody a problem, do all have the same
graph_breaks   communication while a step is captured as CUDA graphs
settings       the environment variables `GRIDWISE_...`; switch: what a context manager sets
"""
