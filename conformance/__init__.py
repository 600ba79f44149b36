"""Other people's tests, run on blocks: `make conformance`.

run.py          all suites, compared with the page
results.py      what came of a suite, as a file of JSON in results/; what is worse than before
page.py         docs/conformance.md out of these
operators.py    torch's operator database through `distribute`
samples.py      what the database calls, and the ways to cut it
on_threads.py   one such call on workers that are threads, compared with torch's own
findings.py     what came of each case: kept in a file, counted
"""
