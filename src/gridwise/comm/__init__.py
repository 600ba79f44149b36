"""Processes and what travels between them: the only code that talks to other processes.

transports/    what moves data: the base, MPI, torch.distributed, one process alone, and one that only counts
messages/      views as one message, dtypes on the wire, small messages that repeat, messages under way
node/          workers of one machine: shared memory and mailboxes, the same for every transport
supervision/   who died, hangs, is missing or makes another call; nobody waits for the dead
launching/     which transport this process is on; local workers from Python, and the pool that they run in
graph_breaks   movements while a step is captured as CUDA graphs
settings       what the environment says
"""
