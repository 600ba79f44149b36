"""Nobody waits for the dead.

watch, hub       a connection to every worker, and the news of who died or failed
waiting          what a worker waits for, with whom, since when; children of workers may not call
matching_calls   whether all workers of a team make the same call
start_timeout    processes that never come to the start of MPI
open_sockets     connections that a library has opened, and how waits on them are ended
excepthook       an exception that nobody caught ends all workers, its traceback first; original_stderr: where it goes
finished_workers who has finished, and who waits for them in vain
guardian         ends the processes of a job whose launcher is gone; bare_process: small processes, started at once
authenticated_listener, network_addresses   a port for those who know the job's secret, and where it is reached
"""
