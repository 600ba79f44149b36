"""Operators on fake tensors, recorded on a tape and replayed on real ones.

recorder, tape   writes the tape; its contents
marking          where random operators start to draw
whole_functions  functions of torch that are one operator on the tape
replaying        runs the part of the tape that is needed
"""
