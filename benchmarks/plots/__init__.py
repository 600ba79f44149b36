"""Pictures of the figures in README.md, drawn from the tables there and from nothing else.

tables    what a benchmark has printed, as rows of cells
choice    which tables are drawn, and what of a table is ours, its limit, a peer and a goal
drawing   one picture: how many times its limit each row takes
page      all pictures, and their places on the page: `draw`
"""

from .page import draw as draw
