"""Other people's tests, run on blocks: `make conformance`.

run.py          all suites, compared with the page
results.py      what came of a suite, as a file of JSON in results/; what is worse than before
page.py         docs/conformance.md out of these
suite.py        a suite over torch's databases: which cases are run, kept, counted
samples.py      what the database of operators calls, and the ways to cut it
operators.py    torch's operators through `distribute`
modules.py      torch's modules through `distribute`
dtypes.py       common operators in other dtypes, with odd numbers and memory formats
on_processes.py a tenth of the operators on processes
on_threads.py   one sample on workers that are threads, compared with torch's own
tiles.py        operators and modules through `tiled`
by_tiles.py     one sample by tiles
fakes.py        operators and modules under `fake_mode`
deferred.py     operators and modules under `deferred_init`
shard_tensor.py, dist_conv.py, dtensor.py      tables of facts of these libraries' tests (tables/)
facts.py        their cases; twice.py: those with gradients of gradients
claims.py, peers.py                           the calls of docs/comparison.md, here and in other libraries
estimators.py, docstrings.py, formats.py      scikit-learn's checks, numpydoc's, arrays in files of other programs
checkouts/      the own tests of libraries whose names Gridwise takes over
findings.py     what came of each case: kept in a file, counted
"""
