"""What was done to fake tensors, written down and done again on real ones.

recorder, tape   writes the tape; what is on it
marking          where random operators begin to draw
replaying        runs the part of the tape that is needed
"""
