"""torch's CPU generator as numbers.

generator, jump   its state, and the state any number of draws later
streams           generators that move while nothing is drawn
draws             how many numbers an operator takes
fills             a block of a random fill, without the rest of it
"""
