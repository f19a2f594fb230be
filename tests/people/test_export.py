"""What goes to a device decides as the package does, and has nobody's row unless asked."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import scipy.sparse as sp
from safetensors.numpy import load_file

import fedaws
from fedaws.device import Device, DeviceError
from fedaws.people.digest import model_digest
from fedaws.people.export import export
from fedaws.record.facts import PrivacyFacts
from fuzz.mutations import mutated
from people.conftest import Trained


def device_refusal(action: Callable[[], object]) -> str:
    with pytest.raises(DeviceError) as refused:
        action()
    assert str(refused.value).isprintable()
    return str(refused.value)


@pytest.fixture
def phone(exported: Path, tmp_path: Path) -> Path:
    """A copy that may be spoilt."""
    return Path(shutil.copytree(exported, tmp_path / "phone"))


def test_exported_embeddings_are_the_packages(trained: Trained, exported: Path) -> None:
    device = Device.load(exported)
    for x in (trained.x_test, trained.strangers, trained.x_test[:1]):  # any number at once, more than a block
        np.testing.assert_allclose(device.embed(x), trained.run.embed(x).numpy(), atol=1e-5)


def test_device_and_package_decide_alike_about_every_stranger(trained: Trained, phone: Path, tmp_path: Path) -> None:
    device, gallery = Device.load(phone), fedaws.Gallery(tmp_path / "people", trained.run)
    for person in (5, 6, 7):
        x = trained.strangers[trained.whose == person][:5]
        device.enroll(str(person), x)
        gallery.enroll(str(person), x)
    rest = trained.strangers[:200]
    decided = [device.identify(x[None], threshold=0.9) for x in rest]
    assert decided == [gallery.identify(x[None], threshold=0.9) for x in rest]
    assert len(set(decided)) > 2
    assert device.verify("5", rest[:1], 0.9) == gallery.verify("5", rest[:1], 0.9)
    device.remove("5")
    assert list(device.gallery.people) == ["6", "7"]


def test_a_gallery_goes_from_the_run_to_the_device_and_back(trained: Trained, phone: Path) -> None:
    fedaws.Gallery(phone / "people.safetensors", trained.run).enroll("Ada", trained.strangers[:1])
    device = Device.load(phone)
    assert device.gallery.score("Ada", device.embed(trained.strangers[:1])) == pytest.approx(1)
    assert fedaws.Gallery(phone / "people.safetensors", device).verify("Ada", trained.strangers[:1], 0.99)


def test_bytes_of_pictures_are_scaled_inside(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (24, 3, 12, 12), dtype=np.uint8), np.arange(24) % 3
    config = fedaws.Config().override(["model.name=resnet8", "train.rounds=2", "clients.examples_per_step=4"])
    run = fedaws.train(fedaws.from_arrays(x, y), config=config)
    device = Device.load(fedaws.export(run, tmp_path / "phone"))
    np.testing.assert_allclose(device.embed(x), run.embed(x).numpy(), atol=1e-5)
    assert "x is float64; wanted uint8 [examples, 3, 12, 12]" in device_refusal(lambda: device.embed(x / 255))


def test_no_row_of_anybody_is_exported_unless_asked(trained: Trained, exported: Path, exported_with_all: Path) -> None:
    assert sorted(file.name for file in exported.iterdir()) == ["encoder.onnx", "model.json"]
    content = (exported / "encoder.onnx").read_bytes()
    assert not any(row.numpy().tobytes() in content for row in trained.run.W)
    rows = load_file(exported_with_all / "people.safetensors")["vectors"]
    np.testing.assert_allclose(rows, trained.run.W.numpy(), atol=1e-6)
    assert list(Device.load(exported_with_all).gallery.people) == ["0", "1", "2", "3", "4"]


def test_the_file_does_not_tell_whose_machine_it_was_made_on(exported: Path) -> None:
    content = (exported / "encoder.onnx").read_bytes() + (exported / "model.json").read_bytes()
    assert str(Path(fedaws.__file__).parents[1]).encode() not in content
    assert b"site-packages" not in content
    assert b".py" not in content


def test_small_weights_are_small_and_nearly_the_same(trained: Trained, exported: Path, tmp_path: Path) -> None:
    small = fedaws.export(trained.run, tmp_path / "small", quantize="int8")
    sizes = [(folder / "encoder.onnx").stat().st_size for folder in (exported, small)]
    assert sizes[1] < 0.4 * sizes[0]
    onnx.checker.check_model(onnx.load(small / "encoder.onnx"))
    z, other = Device.load(small).embed(trained.x_test), trained.run.embed(trained.x_test).numpy()
    assert (z * other).sum(1).min() > 0.999
    # They are other embeddings all the same: a gallery of the one is not the other's.
    fedaws.Gallery(small / "people.safetensors", trained.run).enroll("Ada", trained.x_test[:1])
    assert "enrol again" in device_refusal(lambda: Device.load(small))


def test_a_measured_threshold_is_the_devices_default(trained: Trained, exported_with_all: Path, tmp_path: Path) -> None:
    device = Device.load(exported_with_all, tmp_path / "people")
    told = json.loads((exported_with_all / "model.json").read_text())["threshold"]
    assert told["far"] == {"value": 0.01, "low": 0.0, "high": 0.03}
    device.enroll("Ada", trained.x_test[:1])
    assert device.gallery.threshold_of("Ada") == 0.75
    assert device.verify("Ada", trained.x_test[:1])


def test_model_json_says_what_the_model_is(trained: Trained, exported: Path) -> None:
    facts = json.loads((exported / "model.json").read_text())
    assert facts["example"] == {"shape": [64], "dtype": "float32"}
    assert (facts["dim"], facts["digest"], facts["threshold"]) == (32, model_digest(trained.run), None)
    assert "no formal privacy" in facts["privacy"]


def test_model_json_says_what_a_private_runs_record_does(trained: Trained, tmp_path: Path) -> None:
    record = PrivacyFacts(
        epsilon=1.5,
        epsilon_if_known=6.25,
        delta=1e-5,
        clip=0.1,
        noise=2.0,
        releases=200,
        people=1000,
        per_round=100,
        cohorts="each client by a coin of 0.1 in every round",
        neighbours="one person more or less",
        rows="nothing released",
    )
    run = replace(trained.run, facts=trained.run.facts.model_copy(update={"privacy": record}))
    told = json.loads((export(run, tmp_path) / "model.json").read_text())["privacy"]
    assert "ε = 1.5 (6.25 for whoever knows who took part in which round) at δ = 1e-05" in told
    assert "no formal privacy" not in told
    assert "biometric template" in told


def test_sparse_examples_are_embedded_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    whole = rng.random((300, 9)).astype(np.float32).round(0)  # more than a block
    whole[0] = 0  # nothing in it
    x = sp.csr_matrix(whole)
    settings = ["model.name=bag", "model.residual=true", "train.rounds=2"]
    data = fedaws.from_sparse(x, sp.csr_matrix(np.eye(3)[np.arange(300) % 3]))
    run = fedaws.train(data, config=fedaws.Config().override(settings))
    device = Device.load(fedaws.export(run, tmp_path / "phone"))
    np.testing.assert_allclose(device.embed(x), run.embed(x).numpy(), atol=1e-5)
    assert "wanted a matrix of scipy.sparse" in device_refusal(lambda: device.embed(np.ones((2, 9))))
    assert "wanted a matrix of scipy.sparse" in device_refusal(lambda: device.embed(x[:, :5]))
    assert "negative" in device_refusal(lambda: device.embed(-x))


# --- the device -------------------------------------------------------------------------------------------------------


def test_the_device_runs_without_torch(exported: Path, phone: Path) -> None:
    code = f"""
import sys
import numpy as np
from fedaws.device import Device
device = Device.load({str(phone)!r})
device.enroll("Ada", np.ones((2, 64)))
print(device.identify(np.ones((1, 64)), threshold=0.9), sorted({{"torch", "pydantic", "scipy"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Ada []\n"


@pytest.mark.parametrize(
    ("x", "told"),
    [
        (np.zeros((2, 63)), "x has shape (2, 63); wanted float32 [examples, 64]"),
        (np.zeros((0, 64)), "x has shape (0, 64); wanted float32 [examples, 64]"),
        (np.zeros((1, 64), np.uint8), "x is uint8; wanted float32"),
        (np.full((1, 64), np.nan), "x has NaN or infinite values"),
        (np.full((1, 64), 1e300), "x has NaN or infinite values"),
        ([["a"] * 64], "x is <U1; wanted float32"),
        ([[1], [1, 2]], "x is no array of numbers"),
    ],
)
def test_wrong_examples_are_refused(exported: Path, x: np.ndarray, told: str) -> None:
    assert told in device_refusal(lambda: Device.load(exported).embed(x))


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    assert "cannot read" in device_refusal(lambda: Device.load(tmp_path))


def test_an_encoder_of_another_export_is_refused(phone: Path) -> None:
    with (phone / "encoder.onnx").open("ab") as file:
        file.write(b"0")
    assert "is not the encoder that model.json speaks of" in device_refusal(lambda: Device.load(phone))


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"digest": "xyz"},
        {"dim": 0},
        {"dim": "64"},
        {"dim": None},
        {"example": {"shape": [-1], "dtype": "float32"}},
        {"example": {"shape": [1 << 62], "dtype": "float32"}},
        {"example": {"shape": [64], "dtype": "object"}},
        {"example": 3},
        {"threshold": 0.5},
        {"threshold": {"threshold": 7}},
        {"threshold": {"threshold": "x"}},
        {"encoder_sha256": 5},
    ],
)
def test_a_model_json_that_makes_no_sense_is_refused(phone: Path, change: dict[str, object]) -> None:
    facts = json.loads((phone / "model.json").read_text())
    (phone / "model.json").write_text(json.dumps(facts | change))
    device_refusal(lambda: Device.load(phone))


def test_damaged_folders_are_loaded_or_refused_in_one_line(phone: Path) -> None:
    facts = (phone / "model.json").read_bytes()
    for case in range(200):
        (phone / "model.json").write_bytes(mutated(random.Random(f"device {case}"), facts))
        try:
            Device.load(phone)
        except DeviceError as error:
            told = str(error)
        else:
            told = "loaded"
        assert told.isprintable()


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "{}", "\xff", "1" * 5000])
def test_what_is_no_model_json_is_refused(phone: Path, text: str) -> None:
    (phone / "model.json").write_text(text, encoding="latin-1")
    assert "is no sound model.json" in device_refusal(lambda: Device.load(phone))
