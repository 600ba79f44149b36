"""torch's CPU generator as numbers.

generator, jump   its state, and the state any number of draws later
streams           positions in a stream of draws; generators that advance although nothing is drawn
draws             how many numbers an operator draws
fills             a block of a random fill, without the rest of it
"""
