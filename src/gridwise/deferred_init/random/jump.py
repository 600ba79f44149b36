"""Jump ahead in the Mersenne Twister: the words of its sequence after n steps, without generating the n words between.

MT19937 generates its words x0, x1, x2, ... by a recurrence that is linear over the field of two elements, so every bit
of the sequence satisfies the same recurrence of order N = 19937, given by the characteristic polynomial p(t). Therefore

    t^n mod p(t) = sum of c_i t^i      gives      x_{n+j} = xor of all x_{i+j} with c_i = 1,   i < N.

A polynomial is a Python integer whose bit i is the coefficient of t^i. Squaring spreads the bits. p has only 135 terms,
and its second highest is 227 degrees below the highest, so the remainder modulo p needs no long division:

    1 / p  =  p^127 / p^128  =  p(t) p(t^2) p(t^4) ... p(t^64) / p(t^128)       (squaring is linear over two elements)

and as far as the digits of the quotient are concerned, p(t^128) is a single power of t. A jump takes 2 ms, and 3 ms
more the first time for each length. `generator.py` decides between jumping and skipping.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

N, M = 624, 397  # words in the state, and the distance to the word that is mixed in
LOW_BITS = 31  # bits taken from the next word
TWIST = 0x9908B0DF
DEGREE = 19937

Words = NDArray[np.uint32]


@cache
def characteristic_polynomial() -> int:
    """The polynomial p of MT19937, from its defining constants (Matsumoto and Nishimura 1998, appendix)."""
    outer = (1 << N) | (1 << M)  # t^n + t^m
    inner = (1 << (N - 1)) | (1 << (M - 1))
    powers = [1]
    for _ in range(LOW_BITS):
        powers.append(_multiply(powers[-1], inner))
    p = _multiply(outer, powers[LOW_BITS])
    for bit in range(LOW_BITS):
        if TWIST >> bit & 1:
            p ^= _multiply(outer, powers[LOW_BITS - 1 - bit])
    return p ^ (TWIST >> LOW_BITS & 1)


def _multiply(a: int, b: int) -> int:
    product = 0
    while b:
        low = b & -b
        product ^= a * low
        b ^= low
    return product


@cache
def _gaps() -> tuple[int, ...]:
    """How far below the highest term of p each other term lies."""
    terms = format(characteristic_polynomial(), "b")  # highest first
    return tuple(i for i, bit in enumerate(terms) if bit == "1" and i > 0)


def _remainder(a: int) -> int:
    """`a` mod p for a polynomial of degree below 2 N."""
    quotient = a >> DEGREE
    for doubling in range(7):  # 227 * 2^7 > N
        factor = quotient
        for gap in _gaps():
            shift = gap << doubling
            if shift >= DEGREE:
                break
            factor ^= quotient >> shift
        quotient = factor
    product = 0
    for gap in _gaps():
        product ^= quotient << (DEGREE - gap)
    return (a ^ product) & ((1 << DEGREE) - 1)


def _square(a: int) -> int:
    return int(format(a, "b"), 4)


@lru_cache(maxsize=256)
def power_of_t(n: int) -> int:
    """t^n mod p."""
    free = n.bit_length() - 14  # the leading 14 bits of n give a power below the degree, its own remainder
    result = 1 << (n >> max(free, 0))
    for bit in range(free - 1, -1, -1):
        result = _remainder(_square(result))
        if n >> bit & 1:
            result <<= 1
            if result >> DEGREE & 1:
                result ^= characteristic_polynomial()
    return result


def next_block(words: Words) -> Words:
    """The 624 words after these 624."""
    new = np.empty_like(words)
    head = (words[:-1] & 0x80000000) | (words[1:] & 0x7FFFFFFF)
    mixed = (head >> 1) ^ np.where(head & 1, np.uint32(TWIST), np.uint32(0))
    reach = N - M  # a new word is used again 227 words later
    new[:reach] = words[M:] ^ mixed[:reach]
    new[reach : 2 * reach] = new[:reach] ^ mixed[reach : 2 * reach]
    new[2 * reach : N - 1] = new[reach : N - 1 - reach] ^ mixed[2 * reach :]
    last = int(words[-1]) & 0x80000000 | int(new[0]) & 0x7FFFFFFF
    new[N - 1] = int(new[M - 1]) ^ (last >> 1) ^ (TWIST if last & 1 else 0)
    return new


def jump(words: Words, blocks: int) -> Words:
    """The state `blocks` >= 1 blocks of 624 words later, equal to stepping in every bit."""
    # The low 31 bits of the state's first word take no part in the recurrence, so sum over the words from the second
    # on, with a power that is one smaller.
    distance = N * blocks - 1
    polynomial = power_of_t(distance)
    sequence = [words]
    for _ in range(-(-(DEGREE + N + 1) // N) - 1):
        sequence.append(next_block(sequence[-1]))
    return _combine(np.concatenate(sequence)[1:], polynomial)


def _combine(sequence: Words, polynomial: int) -> Words:
    """XOR of the windows of 624 words that start at the set bits of `polynomial`, four bits at a time."""
    length = DEGREE + N - 1
    sums = np.zeros((16, length), np.uint32)  # sums[b] = xor of the sequence shifted by the set bits of b
    for b in range(1, 16):
        top = b.bit_length() - 1
        shifted = sequence[top : top + length]
        sums[b] = sums[b ^ (1 << top)]
        sums[b, : len(shifted)] ^= shifted
    digits = np.frombuffer(polynomial.to_bytes(DEGREE // 8 + 1, "little"), np.uint8)
    nibbles = np.stack([digits & 15, digits >> 4], axis=1).reshape(-1)
    used = np.flatnonzero(nibbles)
    windows = np.lib.stride_tricks.as_strided(sums, (16, length - N + 1, N), (sums.strides[0], 4, 4))
    result = np.zeros(N, np.uint32)
    for start in range(0, len(used), 256):  # small pieces stay in the cache
        at = used[start : start + 256]
        result ^= np.bitwise_xor.reduce(windows[nibbles[at], 4 * at], axis=0)
    return result
