"""Other people's tests, run on blocks: `make conformance`.

run.py          all suites, compared with the page
results.py      what came of a suite, as a file of JSON in results/; what is worse than before
page.py         docs/conformance.md out of these
operators.py    torch's operator database through `distribute`
samples.py      what the database calls, and the ways to cut it
on_threads.py   one such call on workers that are threads, compared with torch's own
shard_tensor.py, dist_conv.py, dtensor.py      tables of facts of these libraries' tests (tables/)
facts.py        their cases; twice.py: those with gradients of gradients
claims.py, peers.py                           the calls of docs/comparison.md, here and in other libraries
estimators.py, docstrings.py, formats.py      scikit-learn's checks, numpydoc's, arrays in files of other programs
checkouts/      the own tests of libraries whose names Gridwise takes over
findings.py     what came of each case: kept in a file, counted
"""
