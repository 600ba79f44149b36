"""Detecting workers that died, failed, finished or hang, so that nobody waits for them.

watch, hub       a process connected to every worker, which tells all of them who died or failed
waiting          what a worker waits for, with whom, since when; refuses calls from forked children
drawn_batches    the last batches from data loaders, compared when workers agree
start_timeout    a timeout for the start of MPI, if some processes never get there
open_sockets     connections that a library has opened, and ending the waits on them
excepthook       an uncaught exception ends all workers, after its traceback; original_stderr: where that is printed
finished_workers which workers have finished, and who waits for them in vain
guardian         ends the processes of a job whose launcher is gone; bare_process: starting small processes quickly
authenticated_listener, network_addresses   a port for processes that know the job's secret, and its addresses
"""
