"""Products against the exact matrices, the chunks, blocks and wrong arguments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh
from torch import nn

from lpsgd.curvature import hessian_operator
from tests.curvature.nets import (
    CE,
    PROBLEMS,
    attention,
    convolution,
    exact_gauss_newton,
    exact_hessian,
    flat_loss,
    mlp,
)


def operator_of(problem, **options):
    return hessian_operator(
        problem.model, CE, problem.batches, batchnorm=problem.batchnorm, **options
    )


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("cache_gb", [2.0, 0.0], ids=["kept", "anew"])
def test_products_equal_the_exact_hessian(name, cache_gb):
    problem = PROBLEMS[name]()
    exact = exact_hessian(problem)
    operator = operator_of(problem, cache_gb=cache_gb)
    product = operator @ torch.eye(len(exact), dtype=torch.float64)
    assert (product - exact).abs().max() < 1e-12
    assert (operator.graph_bytes > 0) == (cache_gb > 0)


@pytest.mark.parametrize("name", PROBLEMS)
def test_gauss_newton_products_equal_the_exact_matrix(name):
    problem = PROBLEMS[name]()
    exact = exact_gauss_newton(problem)
    product = operator_of(problem, kind="ggn") @ torch.eye(len(exact), dtype=torch.float64)
    assert (product - exact).abs().max() < 1e-12


@pytest.mark.parametrize("problem", [mlp, lambda: convolution("eval")], ids=["mlp", "conv"])
@pytest.mark.parametrize("kind", ["hessian", "ggn"])
def test_products_equal_curvlinops(problem, kind):
    curvlinops = pytest.importorskip("curvlinops", reason="the oracle curvlinops is not installed")
    problem = problem()
    problem.model.eval()
    oracle = {"hessian": curvlinops.HessianLinearOperator, "ggn": curvlinops.GGNLinearOperator}
    theirs = oracle[kind](problem.model, CE, list(problem.model.parameters()), problem.batches)
    operator = operator_of(problem, kind=kind)
    torch.manual_seed(0)
    vectors = torch.randn(operator.shape[0], 3, dtype=torch.float64)
    assert (operator @ vectors - theirs @ vectors).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"weight": torch.tensor([1.0, 5.0, 0.2])}, "class weights"),
        ({"ignore_index": 1}, "ignored"),
    ],
)
def test_a_mean_that_is_not_over_samples_is_not_cut(options, why):
    model = nn.Linear(4, 3)
    data = (torch.randn(9, 4), torch.tensor([0, 1, 2] * 3))
    with pytest.raises(ValueError, match=f"chunk=4 is below the batch size 9.*{why}"):
        hessian_operator(model, nn.CrossEntropyLoss(**options), data, chunk=4)
    total = nn.CrossEntropyLoss(**options, reduction="sum")
    vector = torch.randn(15)
    parts = hessian_operator(model, total, data, chunk=4) @ vector
    assert torch.allclose(parts, hessian_operator(model, total, data) @ vector, atol=1e-5)
    assert hessian_operator(model, nn.CrossEntropyLoss(**options), data, chunk=9).samples == 9


@pytest.mark.parametrize("kind", ["hessian", "ggn"])
def test_chunks_do_not_change_the_product(kind):
    problem = attention()
    vector = torch.randn(operator_of(problem).shape[0], dtype=torch.float64)
    whole = operator_of(problem, kind=kind) @ vector
    for cache_gb in (2.0, 0.0, 3e-5):  # all kept, none, some
        parts = operator_of(problem, kind=kind, chunk=2, cache_gb=cache_gb)
        assert (parts @ vector - whole).abs().max() < 1e-14
        assert parts.graph_bytes <= cache_gb * 2**30
    some = operator_of(problem, kind=kind, chunk=2, cache_gb=3e-5)
    some @ vector
    every = operator_of(problem, kind=kind, chunk=2)
    every @ vector
    assert 0 < some.graph_bytes < every.graph_bytes


def test_kept_bytes_are_those_that_autograd_saves():
    problem = mlp()
    operator = operator_of(problem)
    operator @ torch.ones(operator.shape[0], dtype=torch.float64)
    # The inputs, the hidden layer and the outputs are saved at the very least.
    samples = sum(len(y) for _, y in problem.batches)
    at_least = samples * (4 + 6 + 3) * 8
    assert at_least <= operator.graph_bytes <= 20 * at_least


def test_sum_reduction_is_not_averaged():
    problem = mlp()
    vector = torch.randn(51, dtype=torch.float64)
    mean = operator_of(problem) @ vector
    summed = hessian_operator(problem.model, nn.CrossEntropyLoss(reduction="sum"), problem.batches)
    assert torch.allclose(summed @ vector, 12 * mean, rtol=1e-12)


def test_gradient_equals_autograd():
    problem = attention()
    start, value, _ = flat_loss(problem)
    expected = torch.func.grad(value)(start)
    assert (operator_of(problem).gradient() - expected).abs().max() < 1e-14


def test_scipy_finds_the_same_eigenvalues():
    problem = mlp()
    exact = torch.linalg.eigvalsh(exact_hessian(problem)).numpy()
    values = eigsh(operator_of(problem).to_scipy(), k=3, which="LA", return_eigenvectors=False)
    assert np.abs(np.sort(values) - exact[-3:]).max() < 1e-10


def test_chosen_parameters_are_the_diagonal_block():
    problem = mlp()
    exact = exact_hessian(problem)
    eye = torch.eye(21, dtype=torch.float64)
    block = exact[30:, 30:]
    by_pattern = operator_of(problem, params="2.*")
    by_tensor = operator_of(problem, params=list(problem.model[2].parameters()))
    restricted = operator_of(problem).restrict(["2.weight", "2.bias"])
    anew = operator_of(problem, cache_gb=0).restrict(["2.bias", "2.weight"])
    for operator in (by_pattern, by_tensor, restricted, anew):
        assert operator.names == ("2.weight", "2.bias")
        assert (operator @ eye - block).abs().max() < 1e-12


def test_frozen_parameters_are_left_out_unless_named():
    problem = mlp()
    problem.model[0].weight.requires_grad_(False)
    assert operator_of(problem).names == ("0.bias", "2.weight", "2.bias")
    assert operator_of(problem, params="0.weight").shape == (24, 24)
    assert not problem.model[0].weight.requires_grad


def test_the_point_is_where_the_operator_was_made():
    problem = mlp()
    operator = operator_of(problem)
    vector = torch.randn(51, dtype=torch.float64)
    before = operator @ vector
    with torch.no_grad():
        for parameter in problem.model.parameters():
            parameter.zero_()
    assert torch.equal(operator @ vector, before)


def test_channels_last_models_and_data_are_measured_as_contiguous_ones():
    """torch 2.13's CPU convolutions of few channels corrupt memory in channels_last."""
    problem = convolution("eval")
    vector = torch.randn(204, dtype=torch.float64)
    expected = operator_of(problem) @ vector
    problem.model.to(memory_format=torch.channels_last)
    problem.batches = [(x.to(memory_format=torch.channels_last), y) for x, y in problem.batches]
    operator = operator_of(problem)
    assert (operator @ vector - expected).abs().max() < 1e-14
    assert all(leaf.is_contiguous() for leaf in operator._risk.point.leaves)


def test_a_forward_pass_that_writes_buffers_does_not_move_the_point():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 1)
            self.register_buffer("calls", torch.ones(()))

        def forward(self, x):
            self.calls.add_(1)
            return self.linear(x) * self.calls.clone()

    model, data = Counting(), (torch.randn(5, 2), torch.randn(5, 1))
    operator = hessian_operator(model, nn.MSELoss(), data, cache_gb=0)
    first = operator @ torch.ones(3)
    assert torch.equal(operator @ torch.ones(3), first)
    assert model.calls == 1


def test_tied_weights_count_once():
    torch.manual_seed(0)
    layer = nn.Linear(3, 3, bias=False).double()
    model = nn.Sequential(layer, nn.Tanh(), layer)
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    operator = hessian_operator(model, nn.MSELoss(), (x, y))

    def value(weight):
        return ((torch.tanh(x @ weight.T) @ weight.T - y) ** 2).mean()

    exact = torch.func.hessian(value)(layer.weight.detach()).reshape(9, 9)
    assert (operator @ torch.eye(9, dtype=torch.float64) - exact).abs().max() < 1e-12


def test_inputs_may_be_tuples_and_mappings():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 1)

        def forward(self, left, right):
            return self.linear(left * right)

    model, left, right, y = Two(), torch.randn(5, 2), torch.randn(5, 2), torch.randn(5, 1)
    vector = torch.ones(3)
    as_tuple = hessian_operator(model, nn.MSELoss(), [((left, right), y)])
    as_mapping = hessian_operator(
        model, nn.MSELoss(), [({"left": left, "right": right}, y)], chunk=2
    )
    assert torch.allclose(as_tuple @ vector, as_mapping @ vector)


def test_half_precision_models_are_measured_in_float32_or_what_is_asked_for():
    model = nn.Linear(2, 1, bias=False).to(torch.bfloat16)
    data = (torch.eye(2, dtype=torch.bfloat16), torch.zeros(2, 1, dtype=torch.bfloat16))
    assert hessian_operator(model, nn.MSELoss(), data).dtype == torch.float32
    operator = hessian_operator(model, nn.MSELoss(), data, dtype=torch.float64)
    assert torch.equal(operator @ torch.ones(2), torch.ones(2, dtype=torch.float64))


def test_wrappers_are_seen_through():
    problem = mlp()
    vector = torch.randn(51, dtype=torch.float64)
    expected = operator_of(problem) @ vector
    problem.model = torch.compile(problem.model)
    assert torch.equal(operator_of(problem) @ vector, expected)


def test_ambient_modes_do_not_reach_the_product():
    problem = mlp()
    vector = torch.randn(51, dtype=torch.float64)
    expected = operator_of(problem) @ vector
    with torch.no_grad():
        assert torch.equal(operator_of(problem) @ vector, expected)
    with torch.inference_mode():
        problem.batches = [(x.clone(), y.clone()) for x, y in problem.batches]
        assert torch.equal(operator_of(problem) @ vector, expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(operator_of(problem) @ vector, expected)


def test_wrong_arguments_name_themselves():
    problem = convolution("batch")
    with pytest.raises(ValueError, match=r"chunk=3 is below the batch size 7"):
        operator_of(problem, chunk=3)
    assert operator_of(problem, chunk=7).shape == (204, 204)
    problem = mlp()
    with pytest.raises(ValueError, match="chunk must be at least 1, not 0"):
        operator_of(problem, chunk=0)
    with pytest.raises(ValueError, match=r"params='nothing' chooses no parameter"):
        operator_of(problem, params="nothing")
    with pytest.raises(ValueError, match="not in the model"):
        operator_of(problem, params=[torch.ones(2)])
    with pytest.raises(ValueError, match="kind must be"):
        operator_of(problem, kind="fisher")
    with pytest.raises(ValueError, match="cache_gb must not be negative"):
        operator_of(problem, cache_gb=-1)
    with pytest.raises(ValueError, match="batchnorm must be 'eval' or 'batch', not 'train'"):
        hessian_operator(problem.model, CE, problem.batches, batchnorm="train")
    with pytest.raises(ValueError, match="at least one sample"):
        hessian_operator(problem.model, CE, [])
    with pytest.raises(ValueError, match="pair"):
        hessian_operator(problem.model, CE, [torch.ones(3)])
    with pytest.raises(ValueError, match="loss must return one number"):
        hessian_operator(
            problem.model, nn.CrossEntropyLoss(reduction="none"), problem.batches, reduction="mean"
        ) @ torch.ones(51)
    with pytest.raises(ValueError, match="reduction of the loss"):
        hessian_operator(problem.model, nn.CrossEntropyLoss(reduction="none"), problem.batches)
    with pytest.raises(ValueError, match="51 entries"):
        operator_of(problem) @ torch.ones(50)
    with pytest.raises(ValueError, match="init_process_group"):
        operator_of(problem, distributed=True)
    with pytest.raises(ValueError, match="SyncBatchNorm"):
        hessian_operator(nn.Sequential(nn.SyncBatchNorm(4)), CE, problem.batches, batchnorm="batch")
    with pytest.raises(ValueError, match="dtype must be a floating-point type"):
        operator_of(problem, dtype=torch.int64)
    with pytest.raises(ValueError, match="names must be among"):
        operator_of(problem).restrict(["none.weight"])
