"""Byte-pair encoding against a slow reading of its definition."""

from __future__ import annotations

import doctest
import re
from collections import Counter
from itertools import pairwise

import pytest

from lpsgd.lab.data import subwords
from lpsgd.lab.data.sets.text import manual
from lpsgd.lab.data.subwords import SubWords

TEXT = manual()[:20_000]


def slowly(text, size):
    """Count all pairs anew before each merge, over the whole text; on bytes, not on numbers."""
    words = [
        [bytes([byte]) for byte in word.encode()]
        for word in re.findall(r" ?\w+| ?[^\w\s]+|\s+", text)
    ]
    number = {bytes([byte]): byte for byte in range(256)}
    while len(number) < size:
        counts = Counter(pair for word in words for pair in pairwise(word))
        if not counts or max(counts.values()) < 2:
            break
        most = max(counts.values())
        left, right = min(
            (pair for pair, count in counts.items() if count == most),
            key=lambda pair: (number[pair[0]], number[pair[1]]),
        )
        number[left + right] = len(number)
        for word in words:
            k = 0
            while k + 1 < len(word):
                if (word[k], word[k + 1]) == (left, right):
                    word[k : k + 2] = [left + right]
                k += 1
    return [piece for word in words for piece in word]


def test_the_example_in_the_documentation():
    assert doctest.testmod(subwords).failed == 0


@pytest.mark.parametrize("size", [256, 257, 300, 400])
def test_training_text_is_cut_as_by_the_definition(size):
    words = SubWords(TEXT[:5000], size)
    assert [words.spell(k) for k in words.encode(TEXT[:5000])] == slowly(TEXT[:5000], size)


def test_any_text_can_be_written_and_read_back():
    words = SubWords(TEXT, 512)
    for text in (TEXT, manual()[-20_000:], "", "Zażółć gęślą jaźń \U0001f600\n\t\x00"):
        assert b"".join(words.spell(k) for k in words.encode(text)).decode() == text


def test_repeated_letters_are_merged_from_the_left():
    words = SubWords("aaaaa aaaaa", 258)
    assert b"".join(words.spell(k) for k in words.encode("aaaaaaa")) == b"aaaaaaa"


def test_a_short_text_has_fewer_sub_words():
    assert len(SubWords("abc", 1000)) == 256


def test_a_larger_vocabulary_makes_a_text_shorter():
    lengths = [len(SubWords(TEXT, size).encode(TEXT)) for size in (256, 384, 512, 1024)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == len(TEXT.encode())
    assert lengths[-1] < 0.5 * lengths[0]
