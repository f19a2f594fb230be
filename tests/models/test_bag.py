"""The encoder of sparse examples."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedaws.config import ModelConfig
from fedaws.models import build_encoder, table_names
from fedaws.models.bag import Bag
from fedaws.sparse import SparseRows, from_dense

DENSE = torch.tensor([[0.0, 1.0, 3.0, 0.0], [2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])


def make(hidden: tuple[int, ...] = (), residual: bool = False) -> Bag:
    encoder = build_encoder(ModelConfig(name="bag", embedding_dim=3, hidden=hidden, residual=residual), (4,), seed=0)
    assert isinstance(encoder, Bag)
    return encoder


def test_the_table_alone_gives_the_weighted_mean_of_the_features_rows() -> None:
    bag = make()
    e = bag.table.detach()
    torch.testing.assert_close(bag(from_dense(DENSE)), torch.stack([0.25 * e[1] + 0.75 * e[2], e[0], torch.zeros(3)]))
    assert [name for name, _ in bag.named_parameters()] == ["table"]


def test_sets_of_features_are_averaged() -> None:
    bag = make()
    x = SparseRows(torch.tensor([0, 3]), None, torch.tensor([0, 2]), 4)
    torch.testing.assert_close(bag(x)[0], (bag.table[0] + bag.table[3]) / 2)


def test_dense_examples_give_the_same() -> None:
    bag = make((5,))
    assert bag(DENSE).equal(bag(from_dense(DENSE)))


@pytest.mark.parametrize("index_type", [torch.int32, torch.int64])
def test_the_gradient_is_that_of_a_matrix_product_and_has_the_rows_that_occur(index_type: torch.dtype) -> None:
    bag, target = make((5, 6)), torch.randn(3, 3, generator=torch.Generator().manual_seed(1))
    x = from_dense(DENSE)
    x = SparseRows(x.indices.to(index_type), x.values, x.starts, x.width)
    found = torch.autograd.grad((bag(x) * target).sum(), list(bag.parameters()))
    assert found[0].is_sparse
    assert found[0].indices()[0].tolist() == [0, 1, 2]
    table = bag.table.detach().clone().requires_grad_()
    assert bag.layers is not None
    mean = F.normalize(DENSE, p=1, dim=1) @ table
    expected = torch.autograd.grad((bag.layers(mean) * target).sum(), [table, *list(bag.parameters())[1:]])
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got.to_dense() if got.is_sparse else got, want)


def test_the_papers_layers_have_zero_biases_and_hes_scale() -> None:
    encoder = build_encoder(ModelConfig(name="bag", embedding_dim=512, hidden=(1024, 1024)), (100,), seed=0)
    linear = [m for m in encoder.modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(512, 1024), (1024, 1024), (1024, 512)]
    for layer in linear:
        assert layer.bias.abs().max() == 0
        assert float(layer.weight.detach().std()) == pytest.approx((2 / layer.in_features) ** 0.5, rel=0.02)


def test_embeddings_do_not_start_in_one_cone() -> None:
    encoder = build_encoder(ModelConfig(name="bag", embedding_dim=64, hidden=(128, 128)), (500,), seed=0)
    x = from_dense((torch.rand(300, 500, generator=torch.Generator().manual_seed(0)) < 0.02).float())
    # Two ReLU layers take a cosine of 0 to 0.32 and 0.50 (the arc-cosine kernel), so the mean has length √0.5 or so.
    assert float(F.normalize(encoder(x).detach(), dim=1).mean(0).norm()) < 0.8


def test_a_residual_encoder_starts_as_its_table() -> None:
    bag = make((5,), residual=True)
    torch.testing.assert_close(bag(from_dense(DENSE))[:2], F.normalize(DENSE, p=1, dim=1)[:2] @ bag.table)


def test_the_start_is_a_function_of_the_seed() -> None:
    assert make().table.equal(make().table)


def test_only_encoders_with_sparse_gradients_have_a_table() -> None:
    assert table_names(make()) == ("table",)
    assert table_names(nn.Sequential(nn.EmbeddingBag(3, 2, sparse=True))) == ("0.weight",)
    assert table_names(nn.Sequential(nn.EmbeddingBag(3, 2), nn.Linear(2, 2))) == ()
