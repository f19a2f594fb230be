"""The plot of a comparison."""

from pathlib import Path

import pytest

from fedaws.experiments.plots import plot_comparison


def rows(*values: float) -> list[dict[str, float]]:
    return [{"round": i, "precision@1": v, "max_cosine": -v} for i, v in enumerate(values)]


@pytest.mark.parametrize("title", ["digits", r"costs $\5", "a_b^c"])
def test_a_picture_is_written(tmp_path: Path, title: str) -> None:
    histories = {"fedaws": [rows(0.1, 0.9), rows(0.2, 0.8)], "fixed": [rows(0.1, 0.1), rows(0.2, 0.2)]}
    plot_comparison(histories, tmp_path / "plot.png", title)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
