"""Finding, starting and feeding worker processes.

find                   this process's transport, by how it was started
user_transports        transports over a user's own communicator or process group
start, launch          starting processes on this machine; running a function on local workers
restarts               a job that is started again after a death, on the next grid of a list
torchrun               torch's launcher, with fewer words about a dead worker
cluster                command lines for several machines, as text
pool, pool_task        workers that are started once and run many tasks; one task in progress
worker, pool_messages  the worker's end of a pool, and the messages between the two
packed_calls           values and function calls as bytes, for workers
local_device           the device of this worker
cores, malloc          a worker's share of the cores; keeping freed memory in the process
"""
