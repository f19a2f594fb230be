"""A stranger's run folder cannot hold a report up or fill the memory."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import fedaws
from fedaws import Config
from fedaws.report.page import write_report
from report_pages import page_of, runs_of

TEXTS = ["metrics.jsonl", "details.json", "made_with.json", "flower.json", "participants.jsonl"]
WEIGHTS = ["model/model.safetensors", "checkpoints/round-00000012.safetensors", "trace/W-00000012.safetensors"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny: Config) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    fedaws.train(config=tiny, folder=folder)
    return folder


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def replace(path: Path) -> Path:
    path.unlink(missing_ok=True)
    return path


@pytest.mark.parametrize("name", [*TEXTS, *WEIGHTS])
def test_a_pipe_in_place_of_a_file_is_left_out_with_a_notice(run: Path, name: str) -> None:
    os.mkfifo(replace(run / name))
    text = page_of(run).text
    if not name.startswith("checkpoints"):  # which is not read where there is a model
        assert f"{Path(name).name} is not a plain file" in text


@pytest.mark.parametrize("name", [*TEXTS, *WEIGHTS[:1]])
def test_a_link_to_an_endless_device_is_left_out_with_a_notice(run: Path, name: str) -> None:
    replace(run / name).symlink_to("/dev/zero")
    assert f"{Path(name).name} is not a plain file" in page_of(run).text


@pytest.mark.parametrize("name", TEXTS)
def test_a_folder_in_place_of_a_file_is_left_out_with_a_notice(run: Path, name: str) -> None:
    replace(run / name).mkdir()
    assert f"{name} is not a plain file" in page_of(run).text


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_settings_that_are_no_plain_file_are_one_line(run: Path, kind: str, refused: Callable[..., str]) -> None:
    path = replace(run / "config.toml")
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case _:
            path.mkdir()
    assert "config.toml is not a plain file" in refused("report", run)


@pytest.mark.parametrize("name", TEXTS)
def test_a_huge_file_is_left_out_with_a_notice(run: Path, name: str) -> None:
    with (run / name).open("wb") as file:
        file.truncate(2**40)  # a hole, which takes no room
    most = "67,108,864" if name.endswith("l") else "16,777,216"  # 64 and 16 MB
    assert f"{name} has 1,099,511,627,776 bytes; wanted at most {most}" in page_of(run).text


@pytest.mark.parametrize("name", ["metrics.jsonl", "participants.jsonl"])
def test_of_very_many_lines_the_first_are_read_and_the_others_said_to_be_left_out(run: Path, name: str) -> None:
    (run / name).write_text("\n" * 60_000_000)
    text = page_of(run).text
    assert f"{name} has more than 200,000 lines; the others are left out" in text


@pytest.mark.parametrize("row", ["{}", '{"loss": 1}', '{"round": "two"}', '{"round": 2.5}', "7", "null", '"text"'])
def test_a_line_that_is_no_row_is_left_out_with_a_notice(run: Path, row: str) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(row + "\n")
    assert "metrics.jsonl has 1 lines that cannot be read; left out" in page_of(run).text


def test_reports_that_are_written_at_once_are_all_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs_of(tmp_path, fedaws=[0.9])
    monkeypatch.setattr("fedaws.report.page.make_page", lambda collected: "page " * 100_000)
    failures: list[Exception] = []

    def write() -> None:
        for _ in range(12):
            try:
                write_report([tmp_path / "fedaws-0"], tmp_path / "report.html")
            except Exception as error:
                failures.append(error)

    writers = [threading.Thread(target=write) for _ in range(5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    assert (tmp_path / "report.html").read_text() == "page " * 100_000
