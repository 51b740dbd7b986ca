"""Attention by its products: the same function at the start, of rank D, and blind to the factors it came from."""

import pytest
import torch

from attnid.network.gpt import GPT, GPTConfig
from attnid.training.data import load_corpus
from attnid.training.parametrisations import canonical_gpt, factored_gpt
from attnid.training.products import product_gpt, return_to_rank
from attnid.training.trainer import Trainer, TrainingConfig

CORPUS = load_corpus("embedded")
STARTS = {"plain": GPT, "canonical": canonical_gpt, "factored": factored_gpt}


def config(bias=True):
    return GPTConfig(len(CORPUS.vocabulary), 16, 2, 2, 16, bias=bias)


def shaken(build):
    """The start of a parametrisation, its biases and factors moved off zero."""

    def start(config, seed):
        model, draw = build(config, seed), torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=draw)
        return model

    return start


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", STARTS)
def test_it_starts_as_the_function_of_its_start(kind, bias):
    start, tokens = shaken(STARTS[kind]), CORPUS.val[:32].view(2, 16)
    plain, product = start(config(bias), 3), product_gpt(config(bias), 3, start=start)
    torch.testing.assert_close(product(tokens)[0], plain(tokens)[0], rtol=0, atol=1e-5)


def losses(start, settings):
    trainer = Trainer(product_gpt(config(), 3, start=start), CORPUS, settings, precision="float64")
    return_to_rank(trainer.model, trainer.optimizer)
    return [trainer.advance() for _ in range(settings.steps)], trainer.model


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_all_parametrisations_coincide(optimizer):
    settings = TrainingConfig(
        20, batch_size=4, warmup=0, optimizer=optimizer, learning_rate=1e-2, weight_decay=0.0
    )
    runs = {kind: losses(start, settings)[0] for kind, start in STARTS.items()}
    for run in runs.values():
        torch.testing.assert_close(run, runs["plain"], rtol=0, atol=1e-4)  # starts are float32
    other = losses(lambda config, seed: GPT(config, seed + 1), settings)[0]
    assert max(abs(a - b) for a, b in zip(other, runs["plain"])) > 1e-3


def test_each_step_returns_to_rank_D():
    settings = TrainingConfig(5, batch_size=4, warmup=0, learning_rate=1e-2)
    for model, most in (
        (losses(GPT, settings)[1], 1e-12),
        (product_gpt(config(), 3).double(), 1e-5),
    ):
        for block in model.transformer.h:
            for product in (block.attn.M, block.attn.N):
                s = torch.linalg.svdvals(product)
                assert (s[:, 8] <= most * s[:, 0]).all() and (s[:, 7] > 1e-4 * s[:, 0]).all()


def test_what_has_no_products_is_named():
    for field, value in (("positions", "rotary"), ("dropout", 0.1)):
        with pytest.raises(ValueError, match=f"^{field}="):
            product_gpt(GPTConfig(11, 16, 1, 2, 16, **{field: value}))
