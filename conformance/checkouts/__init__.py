"""Suites of libraries whose names Gridwise takes over, from a checkout that is at hand; nothing of them is shipped.

suite.py                             a library's own pytest under the names of gridwise_compat, counted
distdl.py, torchdistx.py, pytagi.py  where its tests are
"""
