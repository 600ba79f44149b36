"""Random operators: numbers depend on the global index of each element.

drawing            random operators on boxes
random_stream      their numbers, in the order of the operators of a call
random_numbers     numbers by a key and the index of an element
"""

from . import drawing as drawing
