"""Crops and flips, features left out: what goes where, how often, and on what it depends."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

import fedaws
from fedaws.config import Config
from fedaws.core.methods import method_of
from fedaws.data import FederatedData, from_arrays
from fedaws.data.augment import SHIFT, crop_and_flip, leave_out, resized
from fedaws.hashing import hash_tensor
from fedaws.runners.common import ClientData
from fedaws.sparse import SparseRows
from helpers import dense, refusal

WAYS = 2 * 81  # 9 × 9 shifts, flipped or not
UNSHIFTED = 40  # 4 rows and 4 columns of 9 away from the corner crop


def client_data(cfg: Config, data: FederatedData) -> ClientData:
    return ClientData(cfg, method_of(cfg), data)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int, height: int, width: int, dtype: torch.dtype = torch.float32, channels: int = 3) -> Tensor:
    x = torch.randint(0, 256, (count, channels, height, width), generator=rng())
    return x.to(dtype)


def by_hand(image: np.ndarray, draw: int) -> np.ndarray:
    """Pad by mirroring, cut at (row, column), flip: pixel by pixel."""
    row, column, flip = draw % 9, draw // 9 % 9, draw // 81 % 2
    padded = np.pad(image, ((0, 0), (4, 4), (4, 4)), mode="reflect")
    _, height, width = image.shape
    out = np.empty_like(image)
    for c, i, j in itertools.product(range(len(image)), range(height), range(width)):
        from_column = width - 1 - j if flip else j
        out[c, i, j] = padded[c, row + i, column + from_column]
    return out


# --- pixels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("height", "width"), [(5, 5), (6, 9), (12, 7)])
def test_every_shift_and_flip_is_a_cut_of_the_mirrored_image(dtype: torch.dtype, height: int, width: int) -> None:
    x = images(1, height, width, dtype)
    out = crop_and_flip(x, torch.zeros(WAYS, dtype=torch.int64), torch.arange(WAYS))
    assert out.dtype == dtype
    for draw in range(WAYS):
        np.testing.assert_array_equal(out[draw].numpy(), by_hand(x[0].numpy(), draw))


def test_each_number_takes_its_own_image_and_draw() -> None:
    x, numbers, draws = images(5, 8, 8), torch.tensor([3, 0, 3, 4]), torch.tensor([7, 161, 7 + 162 * 10**6, 80])
    out = crop_and_flip(x, numbers, draws)
    for image, number, draw in zip(out, numbers.tolist(), draws.tolist(), strict=True):
        np.testing.assert_array_equal(image.numpy(), by_hand(x[number].numpy(), draw))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_layout_in_memory_does_not_change_the_values(dtype: torch.dtype, channels: int) -> None:
    x, draws = images(6, 8, 8, dtype, channels), torch.arange(6) * 29
    numbers = torch.arange(6)
    last = x.contiguous(memory_format=torch.channels_last)
    assert crop_and_flip(last, numbers, draws).equal(crop_and_flip(x, numbers, draws))
    assert crop_and_flip(last, numbers, draws).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("side", [1, 2, 3, 4])
def test_images_smaller_than_the_shift_are_made_of_their_own_pixels(side: int) -> None:
    x = torch.arange(1.0, 1 + 2 * side * side).view(1, 2, side, side)  # no two pixels are equal
    out = crop_and_flip(x, torch.zeros(WAYS, dtype=torch.int64), torch.arange(WAYS))
    for channel in range(2):
        assert set(out[:, channel].flatten().tolist()) == set(x[0, channel].flatten().tolist())
    assert out[UNSHIFTED].equal(x[0])
    assert out[UNSHIFTED + 81].equal(x[0].flip(2))


def test_the_originals_are_left_alone() -> None:
    x = images(2, 8, 8)
    before = x.clone()
    crop_and_flip(x, torch.tensor([0, 1]), torch.tensor([UNSHIFTED, 0])).zero_()
    assert x.equal(before)


# --- sizes ----------------------------------------------------------------------------------------------------------


def test_half_the_size_is_a_weighted_mean_of_neighbours() -> None:
    # The triangle of half-width 2 around the middle of two pixels weighs its four neighbours 1 : 3 : 3 : 1; at the edge
    # one of them is missing.
    row = torch.tensor([1.0, 2.0, 4.0, 8.0])
    x = row.view(1, 1, 1, 4).expand(1, 1, 4, 4)
    left, right = (3 * 1 + 3 * 2 + 1 * 4) / 7, (1 * 2 + 3 * 4 + 3 * 8) / 7
    torch.testing.assert_close(resized(x, 2), torch.tensor([[[[left, right], [left, right]]]]))


@pytest.mark.parametrize(("height", "width"), [(8, 8), (12, 8), (8, 12), (4, 4)])
def test_images_of_any_shape_become_squares_of_the_asked_size(height: int, width: int) -> None:
    assert resized(images(2, height, width), 8).shape == (2, 3, 8, 8)


def test_a_flat_image_stays_flat_in_any_size() -> None:
    for size in (4, 7, 8, 16):
        torch.testing.assert_close(resized(torch.full((1, 3, 8, 8), 0.3), size), torch.full((1, 3, size, size), 0.3))


def test_images_that_have_the_size_are_not_touched() -> None:
    x = images(2, 8, 8)
    assert resized(x, 8) is x


# --- chance ---------------------------------------------------------------------------------------------------------


def test_every_shift_and_flip_is_about_equally_likely() -> None:
    # A client's images show the way that was drawn: a ramp over rows and columns, each pixel its own number.
    draws = hash_tensor(7, torch.arange(100)[:, None, None], torch.arange(18)[:, None], torch.arange(9)).flatten()
    x = torch.arange(32.0 * 32).view(1, 1, 32, 32)
    out = crop_and_flip(x, torch.zeros(len(draws), dtype=torch.int64), draws)
    centre, right = out[:, 0, 16, 16], out[:, 0, 16, 17]
    flipped = (right < centre).long()
    rows, columns = (centre // 32).long() - 16, (centre % 32).long() - 16 + flipped  # flipped, the centre is 15
    assert int(rows.min()) == int(columns.min()) == -SHIFT
    assert int(rows.max()) == int(columns.max()) == SHIFT
    counts = torch.bincount(((rows + 4) * 9 + columns + 4) * 2 + flipped, minlength=WAYS)
    assert len(counts) == WAYS
    assert int(counts.min()) > 0
    chi_square = float(((counts - 100.0) ** 2 / 100).sum())
    assert chi_square < 239  # 161 degrees of freedom: above 239 once in 10⁴


def federation(dtype: torch.dtype = torch.uint8) -> FederatedData:
    """Three clients with 9, 4 and 6 images; every pixel of an image its own number."""
    y = torch.arange(3).repeat_interleave(torch.tensor([9, 4, 6]))
    return from_arrays(images(len(y), 8, 8, dtype), y)


def config(*settings: str) -> Config:
    return Config().override(["data.augment=crop-flip", "clients.examples_per_step=4", *settings])


def seen(cfg: Config, data: FederatedData, clients: list[int], round_num: int) -> Tensor:
    """What these clients train on, [m, E, b, c, h, w]."""
    source = client_data(cfg, data)
    return source.examples(source.draw(torch.tensor(clients), round_num)).x


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("sizes", ["[]", "[[0, 6]]"])
def test_a_client_alone_sees_what_it_sees_in_a_cohort(steps: int, sizes: str) -> None:
    cfg, data = config(f"clients.local_steps={steps}", f"train.sizes={sizes}"), federation()
    together = seen(cfg, data, [0, 1, 2], 5)
    assert seen(cfg, data, [2, 0], 5).equal(together[[2, 0]])
    for client in range(3):
        assert seen(cfg, data, [client], 5)[0].equal(together[client])


def test_a_part_of_what_was_drawn_for_a_cohort_is_what_is_drawn_for_the_part() -> None:
    source, data = client_data(config(), federation()), federation()
    drawn = source.draw(torch.arange(3), 2)
    part = source.examples(drawn.part(slice(1, 3)))
    assert part.x.equal(seen(config(), data, [1, 2], 2))


def test_earlier_rounds_do_not_matter() -> None:
    cfg, data = config(), federation()
    source = client_data(cfg, data)
    for round_num in range(4):
        source.draw(torch.arange(3), round_num)
    assert source.examples(source.draw(torch.arange(3), 4)).x.equal(seen(cfg, data, [0, 1, 2], 4))


def test_the_steps_of_a_round_follow_each_other() -> None:
    data = federation()
    three, one = seen(config("clients.local_steps=3"), data, [0], 2), [seen(config(), data, [0], t) for t in (6, 7, 8)]
    for step in range(3):
        assert three[0, step].equal(one[step][0, 0])


def draws_of(*settings: str, client: int = 0, round_num: int = 0) -> list[int]:
    source = client_data(config("clients.examples_per_step=64", *settings), from_arrays(*labelled(200)))
    draws = source.draw(torch.tensor([client]), round_num).draws
    assert draws is not None
    return (draws.flatten() % WAYS).tolist()


def labelled(count: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(count, 1, 1, 1), torch.arange(count) % 2


@pytest.mark.parametrize("other", [{"client": 1}, {"round_num": 1}, {"seed": 1}])
def test_client_round_and_seed_each_change_the_draws(other: dict[str, int]) -> None:
    settings = [f"seed={other['seed']}"] if "seed" in other else []
    changed = draws_of(*settings, client=other.get("client", 0), round_num=other.get("round_num", 0))
    assert len(changed) == 64
    # Of 64 pairs at random 0.4 are equal on average, and five or more once in 20,000.
    assert sum(a == b for a, b in zip(draws_of(), changed, strict=True)) < 5


def test_the_places_of_a_batch_have_draws_of_their_own() -> None:
    assert len(set(draws_of())) > 40  # 64 throws on 162 give 53 different ones on average


def test_an_augmented_image_is_one_of_the_clients_own_cropped() -> None:
    data = federation(torch.float32)
    source = client_data(config(), data)
    drawn = source.draw(torch.arange(3), 3)
    x = source.examples(drawn).x
    assert drawn.draws is not None
    for m, b in itertools.product(range(3), range(4)):
        number, draw = int(drawn.numbers[m, 0, b]), int(drawn.draws[m, 0, b])
        assert int(data.starts[m]) <= number < int(data.starts[m + 1])
        np.testing.assert_array_equal(x[m, 0, b].numpy(), by_hand(dense(data.x)[number].numpy(), draw))


def test_bytes_are_given_as_fractions_after_the_crop() -> None:
    data = federation()
    numbers = federation(torch.float32)
    torch.testing.assert_close(seen(config(), data, [0, 1], 0), seen(config(), numbers, [0, 1], 0) / 255)


def test_without_augmentation_the_images_are_as_they_are() -> None:
    data = federation(torch.float32)
    source = client_data(config("data.augment=none"), data)
    drawn = source.draw(torch.arange(3), 3)
    assert drawn.draws is None
    assert source.examples(drawn).x.equal(dense(data.x)[drawn.numbers])


def test_the_size_follows_the_rounds() -> None:
    data, cfg = federation(), config("train.rounds=4", "train.sizes=[[0.25, 4], [0.75, 6]]")
    assert [seen(cfg, data, [0], t).shape[-1] for t in range(4)] == [8, 4, 4, 6]


def bag(*lengths: int) -> SparseRows:
    starts = torch.tensor([0, *lengths]).cumsum(0)
    count = int(starts[-1])
    return SparseRows(torch.arange(count), torch.arange(count) + 1.0, starts, width=count)


def test_the_wanted_part_of_the_features_is_left_out() -> None:
    x = bag(*[10] * 2000)
    kept = leave_out(x, torch.arange(2000), 0.3)
    assert abs(len(kept.indices) / len(x.indices) - 0.7) < 0.01  # some four standard deviations
    assert kept.values is not None
    assert kept.values.equal(kept.indices + 1.0)  # every feature has kept its value


def test_no_example_loses_all_its_features() -> None:
    kept = leave_out(bag(1, 2, 0, 3), torch.arange(4), 0.99)
    assert kept.counts.tolist() == [1, 1, 0, 1]


def test_what_is_left_out_depends_on_the_examples_own_number_alone() -> None:
    x, draws = bag(9, 9, 9), torch.tensor([5, 6, 5])
    kept = leave_out(x, draws, 0.5)
    alone = leave_out(x[2:], draws[2:], 0.5)
    places = [kept[i : i + 1].indices - 9 * i for i in range(3)]
    assert places[0].equal(places[2])
    assert not places[0].equal(places[1])
    assert alone.indices.equal(kept[2:].indices)


def test_only_sparse_examples_have_features_to_leave_out() -> None:
    told = refusal(lambda: fedaws.train(config=Config().override(["data.drop=0.5"])))
    assert told.startswith("data.drop=0.5 has no effect on data.name=digits; set data.drop=0.0 or data.name to one of")
    dense = from_arrays(torch.rand(6, 4), torch.arange(6) % 3)
    told = refusal(lambda: fedaws.train(dense, config=Config().override(["data.drop=0.5"])))
    assert told == "data.drop=0.5 needs sparse examples, got dense ones; set data.drop=0"
