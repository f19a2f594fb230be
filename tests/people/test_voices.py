"""From a folder of recordings to who may come in: the package and the device hear alike."""

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

import fedaws
from fedaws.data.sources.made_voices import voice
from fedaws.device import Device, DeviceError
from fedaws.people.export import _with_small_weights
from fedaws.people.inputs import read_examples, read_people
from helpers import refusal
from people.conftest import STRANGERS, TRAINED, record

Cli = Callable[..., Any]


@pytest.fixture
def phone(home: Path, tmp_path: Path) -> Path:
    """A copy to enrol people on."""
    return Path(shutil.copytree(home / "phone", tmp_path / "phone"))


def test_a_device_hears_waveforms_as_the_package_does(home: Path) -> None:
    run, device = fedaws.load(home / "run"), Device.load(home / "phone")
    x = np.stack([voice(p, 9, seconds=0.5) for p in (*TRAINED, *STRANGERS)])
    x = np.concatenate([x, 1e-3 * x[:1], np.zeros_like(x[:1]), np.sign(x[:1])])  # quiet, silent, far too loud
    np.testing.assert_allclose(device.embed(x), run.embed(x).numpy(), atol=1e-5)


def test_a_device_reads_recordings_as_the_package_does(home: Path, tmp_path: Path) -> None:
    folder = record(tmp_path / "ada", 7, range(2), "ogg", rate=16_000)
    run, device = fedaws.load(home / "run"), Device.load(home / "phone")
    x = read_examples([folder], run)
    assert x.shape == (2, 4000)
    assert np.array_equal(x, np.concatenate([device.read(folder / "0.ogg"), device.read(folder / "1.ogg")]))
    assert np.array_equal(x, read_examples([folder], device))


def test_model_json_says_what_sound_is_wanted(home: Path) -> None:
    facts = json.loads((home / "phone" / "model.json").read_text())
    assert (facts["sample_rate"], facts["example"]["shape"]) == (8000, [4000])
    assert "8000 samples a second" in facts["preprocessing"]


@pytest.mark.parametrize("rate", [-1, "8000", 1.5, True, [8000]])
def test_a_sample_rate_that_makes_no_sense_is_refused(phone: Path, rate: object) -> None:
    facts = json.loads((phone / "model.json").read_text())
    (phone / "model.json").write_text(json.dumps(facts | {"sample_rate": rate}))
    with pytest.raises(DeviceError, match="sample_rate"):
        Device.load(phone)


def test_small_weights_leave_the_spectrum_as_it_is(home: Path) -> None:
    names = {f"encoder.{name}" for name in fedaws.load(home / "run").theta}
    small = onnx.load_from_string(_with_small_weights((home / "phone" / "encoder.onnx").read_bytes(), names))
    whole = [numpy_helper.to_array(each) for each in small.graph.initializer]
    assert sorted(each.shape for each in whole if each.dtype == np.float32 and each.size > 4000) == [
        (129, 40),  # mel
        (201, 258),  # Fourier
    ]
    assert [each.shape for each in whole if each.dtype == np.int8] == [
        (16, 40, 5),
        (128, 112),
        (16, 128),
    ]  # the others are small


@pytest.mark.parametrize("model", ["run", "phone"])
def test_somebody_comes_in_by_voice_and_a_stranger_does_not(cli: Cli, home: Path, tmp_path: Path, model: str) -> None:
    door, ada = tmp_path / "door.safetensors", home / "strangers" / "p9"
    enrolled = cli("enroll", door, "Ada", *(ada / f"{i}.flac" for i in range(4)), "-m", home / model)
    assert "Ada: 4 examples" in enrolled.out
    own = json.loads(
        cli("identify", door, ada / "6.flac", ada / "7.flac", "-m", home / model, "-t", "-1", "--json").out
    )
    other = cli("verify", door, "Ada", home / "strangers" / "p11", "-m", home / model, "-t", "-1", "--json")
    scores = own["nearest"][0]["score"], json.loads(other.out)["score"]
    assert scores[0] > scores[1]
    between = str(sum(scores) / 2)
    assert cli("verify", door, "Ada", ada / "7.flac", ada / "6.flac", "-m", home / model, "-t", between).code == 0
    assert cli("verify", door, "Ada", home / "strangers" / "p11", "-m", home / model, "-t", between).code == 1


def test_trials_of_a_folder_are_those_of_its_arrays(cli: Cli, home: Path, tmp_path: Path) -> None:
    run = fedaws.load(home / "run")
    folders = sorted((home / "strangers").iterdir())
    x = [read_examples([folder], run) for folder in folders]
    np.savez(tmp_path / "people.npz", x=np.concatenate(x), y=np.repeat(np.arange(len(x)), [len(part) for part in x]))
    wanted = ("--enroll", "3", "--far", "0.2", "--draws", "20", "--json")
    of_folder, of_arrays = (
        json.loads(cli("trials", home / "run", people, *wanted).out)
        for people in (home / "strangers", tmp_path / "people.npz")
    )
    assert of_folder == of_arrays
    assert (of_folder["targets"], of_folder["nontargets"]) == (6 * 5, 6 * 5 * 5)


def test_a_folder_without_people_is_refused(home: Path, tmp_path: Path) -> None:
    assert "has no folders" in refusal(lambda: read_people(tmp_path, fedaws.load(home / "run")))


def test_a_damaged_recording_is_named(home: Path, tmp_path: Path) -> None:
    (tmp_path / "ada.wav").write_bytes(b"RIFF and then nothing")
    told = refusal(lambda: read_examples([tmp_path / "ada.wav"], fedaws.load(home / "run")))
    assert "cannot read the sound" in told
    assert "ada.wav" in told


def test_the_device_hears_without_torch(phone: Path, home: Path) -> None:
    code = f"""
import sys
from fedaws.device import Device
device = Device.load({str(phone)!r})
x = device.read({str(home / "strangers" / "p7" / "0.flac")!r})
device.enroll("Ada", x)
print(device.identify(x, threshold=0.9), sorted({{"torch", "pydantic", "scipy"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Ada []\n"


def test_colours_are_made_grey_for_a_model_of_grey_pictures(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (8, 1, 8, 8), dtype=np.uint8)
    config = fedaws.Config().override(["model.name=resnet8", "train.rounds=1", "clients.examples_per_step=2"])
    run = fedaws.train(fedaws.from_arrays(x, np.arange(8) % 2), config=config)
    Image.fromarray(x[0, 0]).save(tmp_path / "grey.png")
    Image.new("RGB", (8, 8), (255, 0, 0)).save(tmp_path / "red.png")
    assert np.array_equal(read_examples([tmp_path / "grey.png"], run)[0], x[0])
    assert read_examples([tmp_path / "red.png"], run)[0, 0, 0, 0] == 76  # 0.299 · 255


def test_the_door_of_the_examples_opens_stays_shut_and_forgets(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    residents, strangers = tmp_path / "residents", tmp_path / "strangers"
    for p in (2, 4):  # six people are too few to learn what others are like
        record(residents / f"p{p}", p, range(4, 11))
    record(strangers / "p8", 8, range(3))
    path = Path(__file__).parents[2] / "examples" / "door.py"
    options = ["--strangers", strangers, "--threshold", "-1", "--gallery", tmp_path / "door"]
    monkeypatch.setattr(sys, "argv", ["door.py", *map(str, [home / "phone", residents, *options])])
    runpy.run_path(str(path), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["p2 is enrolled by 5 examples", "p4 is enrolled by 5 examples"]
    assert "2 of 2 come in by their own name" in lines  # with no threshold to speak of the nearest is taken …
    assert "0 of 1 strangers stay outside" in lines  # … and everybody is near to somebody
    assert lines[-2:] == ["is this p2? yes", "all are removed; p2 knocks: the door stays shut"]
