"""What of images, their sizes and the encoder does not go together is told before the first round."""

import pytest
import torch
from torch import nn

from fedaws import Config, FederatedData, from_arrays
from fedaws.core.methods import method_of
from fedaws.models import build_encoder
from fedaws.training.checks import check_setup, check_weights
from fedaws.types import ServerState
from helpers import refusal


def federation(*shape: int) -> FederatedData:
    x, y = torch.rand(6, *shape, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
    return from_arrays(x, y, x, y)


def check(data: FederatedData, *settings: str, encoder: nn.Module | None = None) -> None:
    cfg = Config().override(["spread.margin=0.5", *settings])
    encoder = encoder or build_encoder(cfg.model, data.x.shape[1:], seed=0)

    def no_warning(message: str) -> None:
        pytest.fail(message)

    check_setup(cfg, method_of(cfg), data, encoder, no_warning)


@pytest.mark.parametrize("shape", [(12,), (8, 8)])
@pytest.mark.parametrize(
    ("setting", "key", "fix"),
    [
        ("data.augment=crop-flip", "data.augment=crop-flip", "set data.augment=none"),
        ("train.sizes=[[0, 16]]", "train.sizes", "set train.sizes=[]"),
    ],
)
def test_only_images_can_be_cropped_or_resized(shape: tuple[int, ...], setting: str, key: str, fix: str) -> None:
    message = refusal(lambda: check(federation(*shape), setting))
    assert message == f"{key} needs images [channels, height, width], got examples of shape {shape}; {fix}"


def test_an_encoder_for_one_size_is_refused_before_the_size_changes() -> None:
    message = refusal(lambda: check(federation(3, 8, 8), "train.sizes=[[0, 8], [0.9, 16]]"))
    assert message.startswith(
        "train.sizes has the size 16, but the encoder does not take examples of shape (3, 16, 16)"
    )
    assert "set train.sizes=[] or take an encoder for any size" in message


def test_an_encoder_whose_output_depends_on_the_size_is_refused() -> None:
    encoder = nn.Sequential(nn.AvgPool2d(4), nn.Flatten())  # 8 × 8 in one colour: 4 numbers; 16 × 16: 16 of them
    message = refusal(
        lambda: check(federation(1, 8, 8), "train.sizes=[[0, 16]]", "model.embedding_dim=4", encoder=encoder)
    )
    assert "train.sizes has the size 16" in message
    assert "gives (1, 16); wanted [examples, 4]" in message


def test_sizes_that_the_encoder_takes_are_taken() -> None:
    check(federation(3, 8, 8), "model.name=resnet8", "train.sizes=[[0, 6], [0.5, 16]]", "data.augment=crop-flip")
    check(federation(3, 8, 8), "train.sizes=[[0.5, 8]]", "data.augment=crop-flip")  # an mlp, and images of its size


def test_bytes_are_checked_as_numbers() -> None:
    x, y = torch.zeros(6, 3, 8, 8, dtype=torch.uint8), torch.arange(6) % 3
    check(from_arrays(x, y, x, y), "model.name=resnet8", "train.sizes=[[0, 6]]")


@pytest.mark.parametrize("norm", ["group", "weight", "none"])
def test_a_resnet_brings_no_warning(norm: str) -> None:
    # Its whitening is a buffer, but one that is the same for everybody.
    check(federation(1, 8, 8), "model.name=resnet8", f"model.norm={norm}")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_weight_that_is_not_finite_is_told_by_its_tensor(value: float) -> None:
    table = torch.zeros(50, 4)
    state = ServerState(7, {"table": table}, torch.eye(3))
    check_weights(state)
    table[31, 2] = value
    assert "table is not finite in round 7" in refusal(lambda: check_weights(state))


def warnings_of(data: FederatedData, *settings: str) -> list[str]:
    cfg, told = Config().override(["spread.margin=0.5", *settings]), list[str]()
    check_setup(cfg, method_of(cfg), data, build_encoder(cfg.model, data.x.shape[1:], seed=0), told.append)
    return told


def test_training_examples_are_not_taken_for_a_test_set_in_silence() -> None:
    assert warnings_of(federation(4)) == []
    (told,) = warnings_of(from_arrays(torch.rand(6, 4), torch.arange(6) % 3))
    assert told.startswith("no test set was given: all figures are of the training examples")


def test_a_run_that_will_not_see_all_its_examples_says_so() -> None:
    x, y = torch.rand(60, 4), torch.arange(60) % 3  # 3 clients of 20; 2 rounds of 3 clients with 4 examples are 24
    (told,) = warnings_of(from_arrays(x, y, x, y), "clients.examples_per_step=4", "train.rounds=2")
    assert told == (
        "this run sees 40% of its 60 training examples; raise train.rounds to about 15 for three of each, or "
        "clients.per_round"
    )


def test_classes_without_a_training_example_are_counted() -> None:
    x, y = torch.rand(6, 12), torch.tensor([0, 0, 0, 2, 2, 2])
    told = warnings_of(from_arrays(x, y, x, y, num_classes=5), "train.rounds=100")
    assert "3 of 5 classes have no training example: no client trains their rows" in told
