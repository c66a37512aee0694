"""An optimizer written as text, alone and in a list."""

from __future__ import annotations

import math

import pytest

from lpsgd.peers import grammar


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sgd", ("sgd", {})),
        ("lpsgdm:lr=1e-3,p=6", ("lpsgdm", {"lr": 1e-3, "p": 6})),
        ("lpsgdm:p=inf,p_schedule=constant", ("lpsgdm", {"p": math.inf, "p_schedule": "constant"})),
        ("sgd:nesterov=true", ("sgd", {"nesterov": True})),
        ("adamw:betas=(0.8, 0.9),lr=1", ("adamw", {"betas": [0.8, 0.9], "lr": 1})),
        ("a.b:C", ("a.b:C", {})),
        ("a.b:C:x=d.e:F,y=none", ("a.b:C", {"x": "d.e:F", "y": None})),
    ],
)
def test_texts(text: str, expected: object) -> None:
    assert grammar.parse(text) == expected


@pytest.mark.parametrize("text", ["", "sgd:lr=", "sgd:=1", "sgd:lr=1,,p=2", "a b"])
def test_texts_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        grammar.parse(text)


def test_lists_of_texts() -> None:
    text = "sgd, lpsgdm:lr=1e-3,p=6,adamw:betas=(0.9,0.99),a.b:C:base=torch.optim:SGD,lr=1,lion"
    assert grammar.split_list(text) == [
        "sgd",
        "lpsgdm:lr=1e-3,p=6",
        "adamw:betas=(0.9,0.99)",
        "a.b:C:base=torch.optim:SGD,lr=1",
        "lion",
    ]
