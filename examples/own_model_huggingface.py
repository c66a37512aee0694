"""Compare optimizers on a Hugging Face model, with its collator: a batch is a mapping.

    python examples/own_model_huggingface.py [FOLDER]

The model is a BERT of one small layer with random weights, the texts are made up: nothing is
downloaded. The model returns its own loss, so that none is given.
"""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import random
import sys

from transformers import BertConfig, BertForSequenceClassification, DefaultDataCollator

from lpsgd.lab import compare

LENGTH, WORDS = 12, 40


def make_model() -> BertForSequenceClassification:
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=2,
    )
    return BertForSequenceClassification(config)


def texts(count: int, seed: int) -> list[dict[str, list[int] | int]]:
    """Twelve words each; of the second kind are those in which word 1 is more frequent than 2."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        kind = draw.randrange(2)
        words = draw.choices(range(3, WORDS), k=LENGTH - 3) + [kind + 1] * 3
        draw.shuffle(words)
        found.append({"input_ids": words, "labels": kind})
    return found


def accuracy(logits, labels):
    return 100 * (logits.argmax(1) == labels).float().mean()


if __name__ == "__main__":
    result = compare(
        ["adamw:lr=3e-3", "lpmuon:lr=1e-2", "lpsgdm:lr=1e-2"],
        model=make_model,
        train=texts(512, seed=1),
        test=texts(256, seed=2),
        collate=DefaultDataCollator(),
        metrics={"accuracy": accuracy},
        batch_size=32,
        epochs=3,
        seeds=2,
        out=sys.argv[1] if len(sys.argv) > 1 else "runs/huggingface",
    )
    print(result)
