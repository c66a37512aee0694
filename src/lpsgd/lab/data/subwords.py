"""Byte-pair encoding (Sennrich et al., 2016): a text as sub-words of a vocabulary of a given size.

The vocabulary starts with the 256 bytes, so that every text can be written in it. Again and again
the pair of neighbours that is most frequent in the training text becomes a sub-word of its own.
Words (letters, digits or a run of spaces and signs) are encoded apart: no sub-word crosses them.
"""

from __future__ import annotations

import re
from collections import Counter
from heapq import heapify, heappop, heappush
from itertools import pairwise

BYTES = 256
_WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s+")

Pair = tuple[int, int]
Word = tuple[int, ...]


class SubWords:
    """Sub-words learned from ``text``; there may be fewer than ``size`` in a short text.

    >>> words = SubWords("low lower lowest, slow slower slowest", 260)
    >>> [words.spell(number) for number in words.encode("slowest")]
    [b's', b'lowe', b's', b't']
    """

    def __init__(self, text: str, size: int) -> None:
        self._merges = _learn(Counter(_WORD.findall(text)), size - BYTES)
        self._known: dict[str, Word] = {}

    def __len__(self) -> int:
        return BYTES + len(self._merges)

    def encode(self, text: str) -> list[int]:
        """The numbers of the sub-words of ``text``."""
        return [number for word in _WORD.findall(text) for number in self._encode_word(word)]

    def _encode_word(self, word: str) -> Word:
        if word not in self._known:
            numbers = tuple(word.encode())
            # in the order in which they were learned: each merge may use what earlier ones made
            while learned := [pair for pair in pairwise(numbers) if pair in self._merges]:
                earliest = min(learned, key=self._merges.__getitem__)
                numbers = _merge(numbers, earliest, self._merges[earliest])
            self._known[word] = numbers
        return self._known[word]

    def spell(self, number: int) -> bytes:
        """The bytes of a sub-word."""
        if number < BYTES:
            return bytes([number])
        left, right = list(self._merges)[number - BYTES]
        return self.spell(left) + self.spell(right)


def _learn(counts: Counter[str], merges: int) -> dict[Pair, int]:
    """The most frequent pairs, one after the other; of equally frequent ones the smallest."""
    words = [tuple(word.encode()) for word in counts]
    weights = list(counts.values())
    frequency: Counter[Pair] = Counter()
    where: dict[Pair, set[int]] = {}
    for place, word in enumerate(words):
        for pair in pairwise(word):
            frequency[pair] += weights[place]
            where.setdefault(pair, set()).add(place)
    queue = [(-number, pair) for pair, number in frequency.items()]
    heapify(queue)
    made: dict[Pair, int] = {}
    while len(made) < merges and queue:
        number, pair = heappop(queue)
        if number > -2:
            break
        if frequency[pair] != -number:  # it has changed since it was queued, and is queued again
            continue
        made[pair] = BYTES + len(made)
        changed: set[Pair] = set()
        for place in where.pop(pair):
            before, words[place] = words[place], _merge(words[place], pair, made[pair])
            for old in pairwise(before):
                frequency[old] -= weights[place]
            for new in pairwise(words[place]):
                frequency[new] += weights[place]
                where.setdefault(new, set()).add(place)
            changed.update(pairwise(before), pairwise(words[place]))
        for each in changed:
            heappush(queue, (-frequency[each], each))
    return made


def _merge(word: Word, pair: Pair, made: int) -> Word:
    """``word`` with each ``pair``, from the left, replaced by the sub-word ``made`` of it."""
    merged: list[int] = []
    place = 0
    while place < len(word):
        if word[place : place + 2] == pair:
            merged.append(made)
            place += 2
        else:
            merged.append(word[place])
            place += 1
    return tuple(merged)
