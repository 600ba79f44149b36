"""A training step of a small network on a CPU as plain loops of C++, compiled in seconds and kept on disk.

recording    the step runs once, and every operator that it calls is written down
lowering     operators become expressions (values, expressions, operators) and loops
loops        loops become few, and C++
step         the library is compiled or found (`gridwise.compiling`), and called: for one batch, or for many at once

The loops are made from the layers' own operators: there is no second implementation of the mathematics. What cannot be
written so raises `NotNativeError`, and the step is compiled in another way (`compiled_step.py`).
"""
