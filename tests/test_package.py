import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import fedaws


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_every_public_name_is_there_and_no_other() -> None:
    assert all(hasattr(fedaws, name) for name in fedaws.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        fedaws.nonsense  # noqa: B018


def test_dir_has_the_public_names_and_nothing_else_of_ours() -> None:
    code = """
import fedaws
import fedaws.cli.main, fedaws.flower.wire, fedaws.report.page  # what else is loaded does not show
own = sorted(name for name in dir(fedaws) if not name.startswith('__'))
print(own == sorted(fedaws.__all__), all(hasattr(fedaws, name) for name in dir(fedaws)), len(own) == len(set(own)))
"""
    assert python(code) == "True True True\n"
    wanted = {"Config", "FederatedData", "FedawsError", "Method", "Model", "Reporter", "Run", "Spread", "TestSet"}
    wanted |= {"compare", "config", "core", "data", "from_arrays", "from_dataset", "from_sparse", "load", "train"}
    assert wanted <= set(dir(fedaws))


def test_the_names_others_call_are_found_after_a_bare_import() -> None:
    code = """
import fedaws
fedaws.core.losses.positive_hinge, fedaws.core.spreadout.spreadout, fedaws.core.spreadout.spreadout_nearest
fedaws.core.spreadout.nearest, fedaws.core.algorithm.broadcast, fedaws.core.algorithm.finish_round
fedaws.core.algorithm.run_round, fedaws.data.from_arrays, fedaws.data.from_dataset
fedaws.train, fedaws.load, fedaws.Run.evaluate, fedaws.Run.identify
"""
    assert python(code) == ""


def test_importing_the_package_does_not_load_torch() -> None:
    assert python("import fedaws, sys; print('torch' in sys.modules)") == "False\n"


def test_the_command_line_starts_without_scikit_learn() -> None:
    assert python("import fedaws.cli.main, sys; print('sklearn' in sys.modules)") == "False\n"


def test_training_trains_the_encoder_that_was_given() -> None:
    x = np.random.default_rng(0).normal(size=(20, 3))
    data, encoder = fedaws.from_arrays(x, [0, 1] * 10), nn.Linear(3, 4)
    run = fedaws.train(data, encoder, fedaws.Config().override(["train.rounds=5", "model.embedding_dim=4"]))
    assert torch.equal(encoder.weight.detach(), run.theta["weight"])
    torch.testing.assert_close(nn.functional.normalize(encoder(data.x), dim=1), run.embed(data.x))
