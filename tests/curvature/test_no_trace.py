"""A measurement leaves the model, the data's order and all random states as they were."""

from __future__ import annotations

import io
import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from lpsgd.curvature import (
    CurvatureMonitor,
    diagonal,
    diagonal_concentration,
    frobenius,
    gradient_densities,
    hessian_operator,
    layerwise,
    spectral_density,
    top_eigenvalues,
    trace,
)
from tests.curvature.nets import CE, attention, convolution


def fingerprint(model, *generators):
    """Every byte that a measurement might change."""
    return pickle.dumps(
        {
            "state": {name: t.detach().numpy().tobytes() for name, t in model.state_dict().items()},
            "identity": [id(t) for t in (*model.parameters(), *model.buffers())],
            "training": [module.training for module in model.modules()],
            "requires_grad": [p.requires_grad for p in model.parameters()],
            "grad": [
                None if p.grad is None else p.grad.numpy().tobytes() for p in model.parameters()
            ],
            "versions": [p._version for p in model.parameters()],
            "torch": torch.get_rng_state().numpy().tobytes(),
            "numpy": np.random.get_state(),
            "python": random.getstate(),
            "generators": [g.get_state().numpy().tobytes() for g in generators],
            "fastpath": torch.backends.mha.get_fastpath_enabled(),
            "flash": torch.backends.cuda.flash_sdp_enabled(),
        }
    )


def prepared(problem):
    """A model in an unusual state: mixed flags, a frozen weight, some gradients."""
    model = problem.model.train()
    modules = list(model.modules())
    modules[-1].eval()
    parameters = list(model.parameters())
    parameters[1].requires_grad_(False)
    CE(model(problem.batches[0][0]), problem.batches[0][1]).backward()
    parameters[0].grad = None
    return model


@pytest.mark.parametrize(
    ("problem", "batchnorm"),
    [(convolution, "eval"), (convolution, "batch"), (attention, "eval")],
    ids=["conv-eval", "conv-batch", "attention"],
)
def test_every_measurement_leaves_no_trace(problem, batchnorm, tmp_path):
    problem = problem() if problem is attention else problem(batchnorm)
    model = prepared(problem)
    x = torch.cat([x for x, _ in problem.batches])
    y = torch.cat([y for _, y in problem.batches])
    generator = torch.Generator().manual_seed(7)
    own_generator = DataLoader(TensorDataset(x, y), 5, shuffle=True, generator=generator)
    global_generator = DataLoader(TensorDataset(x, y), 5, shuffle=True)
    before = fingerprint(model, generator)
    for data, caches in ((own_generator, (2.0, 0.0)), (global_generator, (2.0,))):
        for cache_gb in caches:
            operator = hessian_operator(model, CE, data, batchnorm=batchnorm, cache_gb=cache_gb)
            top_eigenvalues(operator, 2)
            spectral_density(operator, 1, 8)
            for measure in (trace, frobenius, diagonal, diagonal_concentration):
                measure(operator, 2)
            trace(operator, 2, deflate=4)
            layerwise(trace, operator, "*", probes=1)
            gradient_densities(operator)
            operator.gradient()
        ggn = hessian_operator(model, CE, data, batchnorm=batchnorm, kind="ggn")
        trace(ggn, 1)
        CurvatureMonitor(
            model, CE, data, tmp_path, batchnorm=batchnorm, lanczos=5, modules="*", stream=None
        )(0)
        assert fingerprint(model, generator) == before


def test_the_generator_of_a_batch_sampler_is_put_back():
    dataset = TensorDataset(torch.randn(12, 3), torch.randn(12, 2))
    generator = torch.Generator().manual_seed(7)
    batches = BatchSampler(RandomSampler(dataset, generator=generator), 4, drop_last=False)
    before = generator.get_state()
    data = DataLoader(dataset, batch_sampler=batches)
    hessian_operator(torch.nn.Linear(3, 2), torch.nn.MSELoss(), data)
    assert torch.equal(generator.get_state(), before)


def test_a_failing_model_is_put_back_too():
    problem = convolution("batch")
    model = prepared(problem)
    before = fingerprint(model)

    def broken(output, targets):
        torch.rand(3)
        raise ArithmeticError

    operator = hessian_operator(model, broken, problem.batches, batchnorm="batch")
    with pytest.raises(ArithmeticError):
        operator @ torch.ones(operator.shape[0])
    assert fingerprint(model) == before


@pytest.mark.parametrize("batchnorm", ["eval", "batch"])
def test_training_with_probes_equals_training_without_bit_for_bit(batchnorm, tmp_path):
    def train(monitored):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(64, 3),
        )
        data = TensorDataset(torch.randn(40, 1, 6, 6), torch.randint(0, 3, (40,)))
        loader = DataLoader(data, 8, shuffle=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        monitor = CurvatureMonitor(
            model,
            CE,
            loader,
            tmp_path,
            probes=1,
            lanczos=6,
            batchnorm=batchnorm,
            modules="*",
            stream=io.StringIO(),
        )
        for epoch in range(3):
            for x, y in loader:
                optimizer.zero_grad()
                CE(model(x), y).backward()
                if monitored:  # between backward and step: the gradients must survive it
                    monitor(epoch)
                optimizer.step()
        weights = [tensor.numpy().tobytes() for tensor in model.state_dict().values()]
        return weights, torch.get_rng_state().numpy().tobytes()

    assert train(True) == train(False)
    assert (tmp_path / "curvature.jsonl").stat().st_size > 0
