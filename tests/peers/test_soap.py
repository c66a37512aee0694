"""SOAP against another implementation, and its sides, turns and refusals."""

from __future__ import annotations

import doctest

import pytest
import torch
from pytorch_optimizer import SOAP as Peer

from lpsgd.peers import SOAP, soap
from tests.process_group import distributed_tensor, in_processes

SETTINGS = {"lr": 0.02, "betas": (0.9, 0.95), "eps": 1e-12, "weight_decay": 0.1}


def walk(optimizer, params, steps=23):
    """Points on the way down random slopes.

    (The first gradient moves nothing. Were the second the same, it would be diagonal in the new
    coordinates, and what is beside the diagonal 0/0.)
    """
    draw = torch.Generator().manual_seed(1)
    points = []
    for _ in range(steps):
        for p in params:
            p.grad = p.detach() + torch.randn(p.shape, dtype=p.dtype, generator=draw)
        optimizer.step()
        points.append([p.detach().clone() for p in params])
    return points


def starts():
    torch.manual_seed(0)
    shapes = (5, 4), (4, 6), (3, 3), (6,)
    return [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]


def test_the_example_in_the_documentation():
    assert doctest.testmod(soap).failed == 0


def test_another_implementation_takes_the_same_steps():
    settings = {**SETTINGS, "weight_decay": 0.0}  # it decays after the step instead of before
    ours, theirs = starts(), starts()
    mine = walk(SOAP(ours, every=5, **settings), ours)
    peers = walk(Peer(theirs, precondition_frequency=5, **settings), theirs)
    for a, b in zip(mine, peers, strict=True):
        for x, y in zip(a, b, strict=True):  # its bases are turned in float32
            torch.testing.assert_close(x, y, rtol=0, atol=1e-5)


def test_a_long_side_keeps_its_coordinates():
    (a, *_), (b, *_) = starts(), starts()
    mine = walk(SOAP([a], longest=4, **SETTINGS), [a], 4)
    whole = walk(SOAP([b], **SETTINGS), [b], 4)
    assert not torch.allclose(mine[-1][0], whole[-1][0])
    optimizer = SOAP([a], longest=4)
    optimizer.step()
    assert optimizer.state[a]["grams"].shape == (4 * 4,)  # of the columns; there are five rows


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_kernel_is_turned_in_each_dimension_whatever_its_memory_format(memory_format):
    torch.manual_seed(0)
    kernel = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    settings = {**SETTINGS, "weight_decay": 0.0}
    ours = [kernel.clone().to(memory_format=memory_format).requires_grad_()]
    theirs = [kernel.clone().requires_grad_()]
    walk(SOAP(ours, every=4, **settings), ours)
    walk(Peer(theirs, precondition_frequency=4, **settings), theirs)
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=1e-5)


def test_empty_scalar_and_missing_gradients():
    params = [torch.zeros(s, requires_grad=True) for s in ((0, 3), (), (2, 2))]
    for param in params[:2]:
        param.grad = torch.ones_like(param)
    optimizer = SOAP(params, lr=0.1)
    for _ in range(3):
        optimizer.step()
    assert params[1].item() < 0
    assert params[2].tolist() == [[0, 0], [0, 0]]


def test_a_layer_with_dead_units_gets_its_first_bases():
    """Of singular Gram matrices LAPACK does not always find the eigenvalues."""
    draw = torch.Generator().manual_seed(0)
    for number in range(100):
        weight = torch.zeros(64, 128, requires_grad=True)
        alive = torch.rand(64, 1, generator=draw) < 0.4
        faint = 10.0 ** (-30 * torch.rand(64, 1, generator=draw)) if number % 2 else 0.0
        first = torch.randn(64, 4, generator=draw).repeat(1, 32) * torch.where(alive, 1.0, faint)
        weight.grad = first
        optimizer = SOAP([weight], lr=0.1)
        optimizer.step()
        left = optimizer.state[weight]["bases"][: 64 * 64].view(64, 64)
        torch.testing.assert_close(left @ left.mT, torch.eye(64), rtol=0, atol=1e-4)
        # the first four columns span what the gradient does
        torch.testing.assert_close(left[:, 4:].mT @ first, torch.zeros(60, 128), rtol=0, atol=1e-2)


def test_what_it_refuses():
    with pytest.raises(ValueError, match="complex"):
        SOAP([torch.zeros(2, 2, dtype=torch.complex64, requires_grad=True)])
    with pytest.raises(ValueError, match="every"):
        SOAP([torch.zeros(2, requires_grad=True)], every=0)


def sharded_walk():
    """The same walk with sharded parameters, of which this process has a part."""
    from torch.distributed.device_mesh import init_device_mesh

    dtensor = distributed_tensor()
    mesh = init_device_mesh("cpu", (2,))
    cut = [dtensor.Shard(0)]
    params = [
        torch.nn.Parameter(dtensor.distribute_tensor(p.detach(), mesh, cut)) for p in starts()
    ]
    optimizer = SOAP(params, every=5, **SETTINGS)
    draw = torch.Generator().manual_seed(1)
    for _ in range(12):
        for p in params:
            noise = torch.randn(p.shape, dtype=p.dtype, generator=draw)
            p.grad = p.detach() + dtensor.distribute_tensor(noise, mesh, cut)
        optimizer.step()
    momentum = optimizer.state[params[0]]["momentum_buffer"]
    return [p.full_tensor().detach() for p in params], momentum.to_local().shape[0]


@pytest.mark.slow
def test_sharded_parameters_take_the_steps_of_whole_ones():
    params = starts()
    expected = walk(SOAP(params, every=5, **SETTINGS), params, 12)[-1]
    for found, rows in in_processes(2, sharded_walk):
        assert rows < 5  # of the momentum of the first
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
