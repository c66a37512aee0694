"""The networks: published parameter counts, shapes, width, gradients, and what they refuse."""

from __future__ import annotations

import doctest
import math

import pytest
import torch
import torch.nn.functional as F

import lpsgd.lab.models
from lpsgd.lab.errors import UserError
from lpsgd.lab.models import create, names

LARGE = (3, 224, 224)
SMALL = (3, 32, 32)


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def small_shape(name):
    return (16,) if name == "gpt" else SMALL


def batch(name, size=2):
    shape = small_shape(name)
    if name == "gpt":
        return torch.randint(0, 10, (size, *shape)), torch.randint(0, 10, (size * shape[0],))
    return torch.randn(size, *shape), torch.randint(0, 10, (size,))


def test_the_example_in_the_documentation():
    assert doctest.testmod(lpsgd.lab.models).failed == 0


@pytest.mark.parametrize(
    ("name", "shape", "classes", "published"),
    [
        ("resnet18", LARGE, 1000, 11_689_512),
        ("resnet50", LARGE, 1000, 25_557_032),
        ("resnet18", SMALL, 10, 11_173_962),
        ("resnet50", SMALL, 10, 23_520_842),
        ("vgg11", SMALL, 10, 9_231_114),
        ("vgg11", LARGE, 1000, 132_868_840),
    ],
)
def test_parameter_counts_are_the_published_ones(name, shape, classes, published):
    with torch.device("meta"):
        assert count(create(name, input_shape=shape, classes=classes)) == published


def test_mlp_parameter_count():
    model = create("mlp", input_shape=(1, 32, 32), classes=10)
    assert count(model) == 1024 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10


def test_gpt_parameter_count():
    width, context, vocabulary = 64, 128, 103
    norm = 2 * width
    attention = 3 * width * width + 3 * width + width * width + width
    perceptron = 2 * 4 * width * width + 4 * width + width
    expected = (vocabulary + context) * width + 4 * (2 * norm + attention + perceptron) + norm
    assert count(create("gpt", input_shape=(context,), classes=vocabulary)) == expected


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("width", [4, 16])
def test_logits_and_gradients(name, width):
    torch.manual_seed(0)
    model = create(name, input_shape=small_shape(name), classes=10, width=width)
    inputs, targets = batch(name)
    logits = model(inputs)
    assert logits.shape == (len(targets), 10)
    F.cross_entropy(logits, targets).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", ["vgg11", "resnet18", "resnet50"])
def test_the_form_for_large_images_runs(name):
    model = create(name, input_shape=(3, 96, 96), classes=7, width=4).eval()
    assert model(torch.randn(2, 3, 96, 96)).shape == (2, 7)


@pytest.mark.parametrize(
    ("size", "stem_stride"), [(32, (1, 1)), (64, (1, 1)), (65, (2, 2)), (224, (2, 2))]
)
def test_the_stem_follows_the_input_size(size, stem_stride):
    model = create("resnet18", input_shape=(3, size, size), classes=10, width=4)
    assert model.stem[0].stride == stem_stride


@pytest.mark.parametrize(("size", "before_pooling"), [(32, 4), (224, 7)])
def test_resnet_resolution(size, before_pooling):
    model = create("resnet50", input_shape=(3, size, size), classes=10, width=2).eval()
    features = model.blocks(model.stem(torch.randn(1, 3, size, size)))
    assert features.shape == (1, 8 * 2 * 4, before_pooling, before_pooling)


@pytest.mark.parametrize("name", ["vgg11", "resnet18", "resnet50", "mlp"])
@pytest.mark.parametrize("channels", [1, 5])
def test_any_number_of_channels_and_classes(name, channels):
    model = create(name, input_shape=(channels, 32, 32), classes=3, width=4)
    assert model(torch.randn(2, channels, 32, 32)).shape == (2, 3)


@pytest.mark.parametrize("name", ["vgg11", "resnet18", "resnet50"])
def test_width_scales_every_convolution(name):
    def channels(width):
        model = create(name, input_shape=SMALL, classes=10, width=width)
        return [m.out_channels for m in model.modules() if isinstance(m, torch.nn.Conv2d)]

    with torch.device("meta"):
        assert [4 * c for c in channels(16)] == channels(64)
        assert channels(64)[0] == 64


@pytest.mark.parametrize("name", ["vgg11", "resnet18", "resnet50"])
def test_channels_last_changes_nothing(name):
    torch.manual_seed(0)
    model = create(name, input_shape=SMALL, classes=10, width=4).eval()
    images = torch.randn(2, *SMALL)
    expected = model(images)
    model = model.to(memory_format=torch.channels_last)
    found = model(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", names())
def test_the_seed_decides_the_weights(name):
    def weights(seed):
        torch.manual_seed(seed)
        return create(name, input_shape=small_shape(name), classes=10, width=4).state_dict()

    first, again, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_residual_blocks_add_their_shortcut():
    model = create("resnet18", input_shape=SMALL, classes=10, width=4).eval()
    block = model.blocks[0]
    x = torch.rand(1, 4, 8, 8)
    for parameter in block.branch[-1].parameters():
        torch.nn.init.zeros_(parameter)
    assert torch.equal(block(x), x)


class TestGPT:
    def test_no_position_sees_the_future(self):
        torch.manual_seed(0)
        model = create("gpt", input_shape=(12,), classes=20, width=16)
        text = torch.randint(0, 20, (1, 12))
        changed = text.clone()
        changed[0, 7:] = (changed[0, 7:] + 1) % 20
        before, after = model(text), model(changed)
        assert torch.equal(before[:7], after[:7])
        assert not torch.equal(before[7], after[7])

    def test_attention_equals_torchs_own(self):
        torch.manual_seed(0)
        attention = create("gpt", input_shape=(12,), classes=20, width=16).blocks[0].attention
        x = torch.randn(3, 12, 16)
        query, key, value = (
            part.unflatten(-1, (4, 4)).transpose(1, 2)
            for part in attention.project_in(x).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        expected = attention.project_out(mixed.transpose(1, 2).flatten(2))
        torch.testing.assert_close(attention(x), expected)

    def test_it_has_second_derivatives(self):
        model = create("gpt", input_shape=(8,), classes=10, width=8)
        loss = F.cross_entropy(model(torch.randint(0, 10, (2, 8))), torch.randint(0, 10, (16,)))
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        product = torch.autograd.grad(sum(g.square().sum() for g in gradients), parameters)
        assert all(part.isfinite().all() for part in product)

    def test_shorter_texts_are_fine(self):
        model = create("gpt", input_shape=(8,), classes=10, width=8)
        assert model(torch.randint(0, 10, (2, 5))).shape == (10, 10)

    def test_the_first_guess_is_nearly_uniform(self):
        torch.manual_seed(0)
        model = create("gpt", input_shape=(128,), classes=100)
        text = torch.randint(0, 100, (4, 128))
        loss = F.cross_entropy(model(text), torch.randint(0, 100, (512,)))
        assert loss.item() == pytest.approx(math.log(100), abs=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet19"}, "unknown model 'resnet19' .did you mean 'resnet18'"),
        ({"input_shape": (128,)}, r"'resnet18' takes \(channels, height, width\)"),
        ({"input_shape": (0, 32, 32)}, "input_shape is"),
        ({"name": "gpt"}, r"'gpt' takes \(context,\)"),
        ({"classes": 0}, "classes is 0; allowed: 1 or more"),
        ({"width": 0}, "width is 0; allowed: 1 or more"),
        ({"name": "gpt", "input_shape": (8,), "width": 6}, "width is 6; gpt needs a multiple of 4"),
        ({"name": "vgg11", "input_shape": (3, 28, 28)}, "vgg11 halves images five times"),
    ],
)
def test_what_is_refused(arguments, message):
    given = {"name": "resnet18", "input_shape": SMALL, "classes": 10} | arguments
    with pytest.raises(UserError, match=message):
        create(given.pop("name"), **given)


def test_convnet_parameter_count_and_smallest_image():
    model = create("convnet", input_shape=(3, 16, 16), classes=10, width=16)
    kernels = 9 * 16 * (3 + 2 * 16 + 2 * 4 * 16 + 4 * 4 * 16)
    norms = 2 * 16 * (1 + 2 + 4 + 4)
    assert count(model) == kernels + norms + 64 * 10 + 10
    with pytest.raises(UserError, match="convnet halves images twice"):
        create("convnet", input_shape=(3, 2, 2), classes=10)
