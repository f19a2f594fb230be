"""A class added to a trained model, or taken out of it: nobody else is renamed, and what is gone is gone."""

from pathlib import Path

import numpy as np
import pytest
import torch

import fedaws
from fedaws import Config, Reporter, Run
from helpers import refusal

NAMES = ["ann", "bob", "cy", "di"]
X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0)) + 4 * torch.eye(6)[torch.arange(24) % 4]


def trained(tiny: Config, *settings: str) -> Run:
    data = fedaws.from_arrays(X, torch.arange(24) % 4, class_names=NAMES)
    quiet = Reporter(on_warning=lambda message: None)
    return fedaws.train(data, config=tiny.override(["train.rounds=4", *settings]), reporter=quiet)


def test_a_new_class_has_the_next_number_and_its_mean_direction(tiny: Config) -> None:
    run = trained(tiny)
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    more = run.with_class("eve", x)
    assert more.class_names == (*NAMES, "eve")
    assert more.facts.classes == 5
    assert more.W[:4].equal(run.W)
    mean = run.embed(x).mean(0)
    torch.testing.assert_close(more.W[4], mean / mean.norm())
    assert (len(run.W), run.class_names) == (4, tuple(NAMES))  # the run itself is as it was


def test_a_name_is_given_once(tiny: Config) -> None:
    assert "there is a class 'bob' already" in refusal(lambda: trained(tiny).with_class("bob", X[:1]))


def test_without_names_a_new_class_is_told_beside_numbers(tiny: Config) -> None:
    data = fedaws.from_arrays(X, torch.arange(24) % 4)
    more = fedaws.train(data, config=tiny.override(["train.rounds=1"])).with_class("eve", X[:1])
    assert more.class_names == ("0", "1", "2", "3", "eve")


@pytest.mark.parametrize("who", ["bob", 1])
def test_all_others_keep_their_numbers_and_names(tiny: Config, who: str | int) -> None:
    run = trained(tiny)
    fewer = run.without_class(who)
    others = [0, 2, 3]
    assert fewer.W[others].equal(run.W[others])
    assert [fewer.class_names[c] for c in others] == ["ann", "cy", "di"]  # type: ignore[index]
    before, after = run.identify(X, k=4), fewer.identify(X, k=3)
    for i in range(len(X)):
        assert after.classes[i].tolist() == [c for c in before.classes[i].tolist() if c != 1]


@pytest.mark.parametrize("settings", [(), ("train.last_step=lda",), ("model.crowding=0.5",)])
@pytest.mark.parametrize("k", [1, 3, 4, 100])
def test_a_removed_class_never_comes_back(tiny: Config, k: int, settings: tuple[str, ...]) -> None:
    found = trained(tiny, *settings).without_class("bob").identify(X, k=k)
    assert not (found.classes == 1).any()
    assert found.classes.shape[1] == min(k, 3)
    assert found.scores.isfinite().all()
    assert found.scores.abs().max() < 1e6


def test_an_index_never_gives_a_removed_class_back(tiny: Config) -> None:
    pytest.importorskip("faiss")
    run = trained(tiny).without_class("bob")
    found = run.identify(X, k=4, index=run.index(cells=2), probes=2)
    assert not (found.classes == 1).any()


def test_names_come_in_the_form_of_the_numbers(tiny: Config) -> None:
    run = trained(tiny)
    assert run.names_of(torch.tensor([[0, 3], [2, 1]])) == [["ann", "di"], ["cy", "bob"]]
    assert run.names_of(torch.tensor(2)) == "cy"


@pytest.mark.parametrize("who", ["zoe", 4, -1])
def test_a_class_that_is_not_there_cannot_be_removed(tiny: Config, who: str | int) -> None:
    assert f"no class {who!r}; there are 4" in refusal(lambda: trained(tiny).without_class(who))


def test_a_removed_class_is_not_removed_again(tiny: Config) -> None:
    fewer = trained(tiny).without_class("bob")
    assert "no class" in refusal(lambda: fewer.without_class("bob"))
    assert "no class" in refusal(lambda: fewer.without_class(""))


def test_a_saved_model_is_loaded_as_it_was_and_nothing_of_the_removed_row_is_in_it(
    tiny: Config, tmp_path: Path
) -> None:
    run = trained(tiny)
    changed = run.with_class("eve", X[:2]).without_class("bob")
    place = changed.save(tmp_path / "model")
    loaded = fedaws.load(place)
    assert loaded.W.equal(changed.W)
    assert loaded.class_names == ("ann", "", "cy", "di", "eve")
    assert loaded.identify(X, k=9).classes.equal(changed.identify(X, k=9).classes)
    content = b"".join(path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file())
    assert run.W[0].numpy().tobytes() in content
    for number in run.W[1].numpy():  # not one of its numbers
        assert number.tobytes() not in content
    assert b"bob" not in content


def test_a_changed_model_is_measured_without_nan(tiny: Config) -> None:
    changed = trained(tiny).without_class("bob")
    found = changed.evaluate(fedaws.from_arrays(X, torch.arange(24) % 4))
    assert all(np.isfinite(value) for value in found.values())


@pytest.mark.parametrize("shape", [(6,), (3, 8, 8)])
def test_a_single_example_is_told_to_be_a_batch(tiny: Config, shape: tuple[int, ...]) -> None:
    x = torch.rand(12, *shape)
    run = fedaws.train(fedaws.from_arrays(x, torch.arange(12) % 4, x, torch.arange(12) % 4), config=tiny)
    for one in (x[0], x[0].numpy()):
        told = refusal(lambda one=one: run.identify(one))  # type: ignore[misc]
        assert told == f"x is a single example of shape {shape}; wanted a batch of them: x[None], or x[:1]"
    assert run.identify(x[:1]).classes.shape == (1, 1)
