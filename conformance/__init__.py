"""Other people's tests, run on blocks: `make conformance`.

operators.py    torch's operator database through `distribute`: the command, and its part of docs/conformance.md
samples.py      what the database calls, and the ways to cut it
on_threads.py   one such call on workers that are threads, compared with torch's own
findings.py     what came of each case: kept in a file, counted
"""
