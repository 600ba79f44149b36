"""How processes are found, started and fed.

find, given            which transport this process is on, by how it was started; one over what a user has
start, launch          processes on this machine; a function on local workers
cluster                command lines for several machines, as text
pool, pool_task        workers that are started once and run tasks; one task on its way
worker, pool_messages  the other end, and what the two say
packed_calls           a call as bytes, for workers to make
cores, malloc          how many cores a worker may count on; freed memory stays in the process
"""
