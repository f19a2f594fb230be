"""What may be wrong with a method, a measure or data of one's own is told in one line, at once."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedaws
from fedaws import Config, Method, Spread
from fedaws.core.method import LastStep, Weighting
from fedaws.core.optimizers import from_torch
from fedaws.training.session import Interrupted
from fedaws.types import Memory
from helpers import refusal


def pull(embeddings: Tensor, w: Tensor) -> Tensor:
    return 1 - (embeddings * w).sum(-1)


PLAIN = Method("mine", "mine", "own", pull)


def weighted(weights: Callable[[Tensor], Tensor]) -> Method:
    nothing = Weighting(lambda W: {}, lambda memory, classes: weights(classes), lambda memory, classes, losses: memory)
    return replace(PLAIN, weighting=nothing)


def remembering(step: Callable[[Tensor], Any]) -> Method:
    return replace(PLAIN, spread=Spread(lambda W, *_: step(W), lambda W: {"count": torch.zeros(())}))


def longer(W: Tensor, *_: Any) -> Memory:
    W.mul_(3)
    return {}


def spoilt(W: Tensor, *_: Any) -> Memory:
    W.fill_(torch.nan)
    return {}


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (replace(PLAIN, loss=lambda g, w: pull(g, w)[..., None]), "the method's loss has shape"),
        (replace(PLAIN, loss=lambda g, w: pull(g, w).mean()), "the method's loss has shape ()"),
        (replace(PLAIN, loss=lambda g, w: 1.0), "the method's loss gave a float; wanted a tensor"),  # type: ignore[arg-type]
        (replace(PLAIN, loss=lambda g, w: torch.ones(g.shape[:-1])), "the method's loss has no gradient"),
        (replace(PLAIN, loss=lambda g, w: pull(g - g.mean(0), w)), "the method's loss mixes clients"),
        (replace(PLAIN, loss=lambda g, w: pull(g, w) * torch.rand(())), "the method's loss mixes clients, or depends"),
        (
            replace(PLAIN, spread=Spread(longer)),
            "the method's spread left rows of lengths 3 to 3",
        ),
        (
            replace(PLAIN, spread=Spread(spoilt)),
            "the method's spread left rows of",
        ),
        (replace(PLAIN, start=lambda rows: rows[:2]), "the method's start gave torch.float32 (2, 5)"),
        (replace(PLAIN, start=lambda rows: rows * torch.nan), "the method's start gave"),
        (replace(PLAIN, last_step=LastStep(lambda W, sums: W)), "the method's last step gave Tensor"),  # type: ignore[arg-type,return-value]
        (replace(PLAIN, last_step=LastStep(lambda W, sums: (W, W))), "the method's last step gave a bias (4, 5)"),
        (weighted(lambda classes: torch.zeros(len(classes))), "the method's weights"),
        (weighted(lambda classes: torch.ones(1)), "the method's weights have shape (1,)"),
        (remembering(lambda W: None), "the method's spread gave the memory NoneType"),
        (remembering(lambda W: {"count": 3}), "the method's spread gave the memory dict"),
        (remembering(lambda W: {"other": torch.zeros(())}), "the method's spread gave the memory {'other'"),
        (remembering(lambda W: {"count": torch.zeros(2)}), "the method's spread gave the memory {'count'"),
    ],
)
@pytest.mark.parametrize("runner", ["pooled", "serial"])
def test_a_function_that_gives_something_else_is_told(tiny: Config, method: Method, told: str, runner: str) -> None:
    cfg = tiny.override([f"train.runner={runner}"])
    assert refusal(lambda: fedaws.train(config=cfg, method=method)).startswith(told)


def test_a_memory_starts_as_tensors_by_name(tiny: Config) -> None:
    method = replace(PLAIN, spread=Spread(lambda W, *_: {}, lambda W: {"count": 1}))  # type: ignore[dict-item]
    told = refusal(lambda: fedaws.train(config=tiny, method=method))
    assert told == "the method's spread starts with the memory {'count': 1}; wanted tensors by name, or {}"


def test_a_guarded_step_that_gives_no_memory_is_told(tiny: Config) -> None:
    cfg, method = tiny.override(["defence.row_step=0.5"]), replace(PLAIN, spread=Spread(lambda W, *_: None))  # type: ignore[arg-type]
    told = refusal(lambda: fedaws.train(config=cfg, method=method))
    assert told.startswith("the method's spread gave the memory NoneType")


@pytest.mark.parametrize(
    ("part", "given", "told"),
    [
        ("loss", 3, "a int as its loss; wanted a function"),
        ("spread", pull, "a function as its spread; wanted Spread, as in fedaws.Spread(step)"),
        ("spread", Spread, "Spread as its spread; wanted Spread, as in"),
        ("server", torch.optim.AdamW, "AdamW as its server; wanted Optimizer, as by fedaws.core.optimizers.from_torch"),
        ("start", None, "a NoneType as its start; wanted a function"),
        ("weighting", pull, "a function as its weighting; wanted Weighting"),
        ("last_step", pull, "a function as its last_step; wanted LastStep"),
    ],
)
def test_a_part_of_another_kind_is_told(part: str, given: Any, told: str) -> None:
    assert refusal(lambda: replace(PLAIN, **{part: given})).startswith(f"method 'mine' has {told}")


def test_an_optimiser_is_made_by_a_function() -> None:
    made = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)
    told = refusal(lambda: from_torch(made))  # type: ignore[arg-type]
    assert told.startswith("from_torch got a SGD; wanted a function that makes the optimiser")


@pytest.mark.parametrize("given", [[pull], {"a": 3}, {1: pull}, pull])
def test_measures_are_functions_by_name(tiny: Config, given: Any) -> None:
    told = refusal(lambda: fedaws.train(config=tiny, measures=given))
    assert told.startswith("measures=")
    assert told.endswith("wanted functions by name, as in {'worst': worst_class}")


@pytest.mark.parametrize(
    ("given", "told"), [("0.5", "'0.5'"), (None, "None"), (torch.ones(3), "a tensor of shape (3,)")]
)
def test_a_measure_gives_a_number(tiny: Config, given: Any, told: str) -> None:
    measures = {"odd": lambda model, test: given}
    assert refusal(lambda: fedaws.train(config=tiny, measures=measures)).startswith(f"the measure 'odd' gave {told}; ")


@pytest.mark.parametrize("setting", ["validation=0.2", "clients_per_class=2", "num_classes=9", "strangers=0.3"])
def test_data_that_are_given_are_not_dealt_out_by_settings(tiny: Config, setting: str) -> None:
    data = fedaws.from_arrays(torch.rand(24, 6), torch.arange(24) % 4)
    told = refusal(lambda: fedaws.train(data, config=tiny.override([f"data.{setting}"])))
    assert told == f"data.{setting}: no effect on data that are given; give it to fedaws.from_arrays"


def test_a_method_of_ones_own_reads_no_options(tiny: Config, tmp_path: Path) -> None:
    cfg = tiny.override(["options.step=3"])
    for action in (
        lambda: fedaws.train(config=cfg, method=PLAIN, folder=tmp_path / "run"),
        lambda: fedaws.compare(["fixed", PLAIN], config=cfg, folder=tmp_path / "runs"),
    ):
        assert refusal(action).startswith("options (step) have no effect on a method of your own")
    assert not list(tmp_path.iterdir())


def test_a_saved_run_of_an_own_method_is_evaluated_on_the_configured_data(tiny: Config, tmp_path: Path) -> None:
    run = fedaws.train(config=tiny, method=PLAIN, folder=tmp_path)
    assert fedaws.load(tmp_path).evaluate()["precision@1"] == run.metrics[-1]["precision@1"]


def test_rows_live_in_one_of_few_places() -> None:
    assert "has rows='mine'; wanted own, private, fixed" in refusal(lambda: replace(PLAIN, rows="mine"))  # type: ignore[arg-type]


def test_a_count_is_a_memory_like_any_other(tiny: Config, tmp_path: Path) -> None:
    counting = Spread(lambda W, c, when, rng, memory: {"t": memory["t"] + 7}, lambda W: {"t": torch.tensor(0)})
    method, seen = replace(PLAIN, spread=counting), list[int]()
    stop = fedaws.Reporter(on_round=lambda done, _: seen.append(done), should_stop=lambda: len(seen) > 6)
    with pytest.raises(Interrupted):
        fedaws.train(config=tiny, method=method, folder=tmp_path, reporter=stop)
    resumed = fedaws.train(config=tiny, method=method, folder=tmp_path, resume=True)
    assert resumed.W.equal(fedaws.train(config=tiny, method=method).W)


@pytest.mark.parametrize("name", ["precision@1", "loss", "round", "seconds"])
def test_a_measure_does_not_take_the_place_of_ours(tiny: Config, tmp_path: Path, name: str) -> None:
    told = refusal(lambda: fedaws.train(config=tiny, measures={name: lambda model, test: 1.0}, folder=tmp_path / "a"))
    assert told == f"a measure of your own is called {name!r}, as one of ours; give it another name"
    assert not (tmp_path / "a").exists()


def test_a_run_does_not_go_on_with_other_data_of_the_same_size(tiny: Config, tmp_path: Path) -> None:
    def data(seed: int) -> fedaws.FederatedData:
        x = torch.rand(24, 6, generator=torch.Generator().manual_seed(seed))
        return fedaws.from_arrays(x, torch.arange(24) % 4)

    seen = list[int]()
    stop = fedaws.Reporter(on_round=lambda done, _: seen.append(done), should_stop=lambda: len(seen) > 6)
    with pytest.raises(Interrupted):
        fedaws.train(data(0), config=tiny, folder=tmp_path, reporter=stop)
    told = refusal(lambda: fedaws.train(data(1), config=tiny, folder=tmp_path, resume=True))
    assert "was started with data=" in told
    fedaws.train(data(0), config=tiny, folder=tmp_path, resume=True)


def test_two_people_have_two_names() -> None:
    told = refusal(lambda: fedaws.from_arrays(torch.rand(4, 2), [0, 0, 1, 1], class_names=["Ann", "Ann"]))
    assert told == "class_names has a name twice; give every class a name of its own"


@pytest.mark.parametrize("last_step", ["ridge", "lda"])
def test_no_row_is_added_to_rows_of_unequal_length(tiny: Config, last_step: str) -> None:
    run = fedaws.train(config=tiny.override([f"train.last_step={last_step}"]))
    told = refusal(lambda: run.with_class("Eve", torch.rand(3, 6)))
    assert told.startswith(f"train.last_step={last_step} made rows of unequal length")


def test_a_removed_class_does_not_count_as_the_nearest(tiny: Config) -> None:
    run = fedaws.train(config=tiny)
    assert run.data is not None
    without = run.without_class(1)
    kept = run.W[[0, 2, 3]]
    largest = float((kept @ kept.T).fill_diagonal_(-1).max())
    assert without.evaluate(run.data)["max_cosine"] == pytest.approx(largest, abs=1e-5)


def test_what_is_printed_of_a_run_has_no_rows_in_it(tiny: Config) -> None:
    run = fedaws.train(config=tiny)
    assert repr(run) == "Run('tiny', method='fedaws', 4 classes in 5 dimensions)"
    assert "tensor" not in repr(run.data)


def test_few_classes_are_remembered_too(tiny: Config) -> None:
    settings = ["spread.regularizer=nearest", "spread.neighbors=1", "spread.candidates=3", "spread.remember=true"]
    fedaws.train(config=tiny.override(settings))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam", "muon"])
def test_an_encoder_that_is_a_table_alone_trains_with_every_server_optimiser(optimizer: str) -> None:
    settings = ["data.name=xc-synthetic", "data.scale=0.001", "model.name=bag", "model.hidden=[]", "train.rounds=2"]
    cfg = Config().override([*settings, "clients.per_round=20", "spread.margin=0.8", f"server.optimizer={optimizer}"])
    fedaws.train(config=cfg)


def test_one_name_in_the_place_of_several_methods_is_told(tiny: Config) -> None:
    assert "wanted a list and a number" in refusal(lambda: fedaws.compare("fedaws", config=tiny))
    assert "wanted a list and a number" in refusal(lambda: fedaws.compare(["fedaws"], config=tiny, seeds=[0, 1]))  # type: ignore[arg-type]


def test_a_spread_is_made_of_functions() -> None:
    assert refusal(lambda: Spread(lambda *_: {}, {})).startswith("Spread got a dict")  # type: ignore[arg-type]


def test_a_package_name_in_other_letters_is_taken_too(tiny: Config) -> None:
    method = replace(PLAIN, name="FedAwS")
    assert "as one of ours" in refusal(lambda: fedaws.train(config=tiny, method=method))
