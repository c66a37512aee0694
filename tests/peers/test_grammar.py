"""An optimizer written as text, alone and in a list."""

from __future__ import annotations

import math

import pytest

from lpsgd.peers import grammar, registry


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
    assert grammar.split_list(text, registry.names()) == [
        "sgd",
        "lpsgdm:lr=1e-3,p=6",
        "adamw:betas=(0.9,0.99)",
        "a.b:C:base=torch.optim:SGD,lr=1",
        "lion",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ours=lpsgdm:lr=0.01,sgd", ["ours=lpsgdm:lr=0.01", "sgd"]),
        ("sgd:lr=0.1,momentum=0.9,plain=sgd", ["sgd:lr=0.1,momentum=0.9", "plain=sgd"]),
        ("a=lpsgdm:p=4,lr=1,b=lpsgdm:p=6", ["a=lpsgdm:p=4,lr=1", "b=lpsgdm:p=6"]),
        ("adamw:betas=(0.9,0.95),lr=1e-3,b=lion", ["adamw:betas=(0.9,0.95),lr=1e-3", "b=lion"]),
        ("sgd,mine=a.b:C,lion", ["sgd", "mine=a.b:C", "lion"]),
        ("sgd:lr=1,mine=a.b:C:x=1,y=2", ["sgd:lr=1", "mine=a.b:C:x=1,y=2"]),
        # an import path's settings may be import paths, as SAM's is
        ("a.b:SAM:lr=1,base=torch.optim:SGD,lion", ["a.b:SAM:lr=1,base=torch.optim:SGD", "lion"]),
        # a mistake stays where it can be named
        ("sgd:lr=1,ours=lpsgmd:p=4", ["sgd:lr=1", "ours=lpsgmd:p=4"]),
        ("sgd,ours=lpsgmd", ["sgd", "ours=lpsgmd"]),
        ("sgd,lr=0.1", ["sgd,lr=0.1"]),
    ],
)
def test_lists_with_names(text: str, expected: list[str]) -> None:
    assert grammar.split_list(text, registry.names()) == expected


@pytest.mark.parametrize("name", registry.names())
def test_no_setting_of_a_registered_optimizer_is_taken_for_a_name(name: str) -> None:
    settings = registry.get(name).settings
    text = ",".join(
        f"{key}=({','.join(map(str, value))})" if isinstance(value, list) else f"{key}={value}"
        for key, value in settings.items()
    )
    assert grammar.split_list(f"{name}:{text},sgd", registry.names()) == [f"{name}:{text}", "sgd"]
