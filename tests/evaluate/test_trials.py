"""Trial lists and score files: read as the field writes them, refused with the line that is wrong."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaws.evaluate.trials import (
    Scored,
    Trial,
    compared,
    labelled,
    read_scores,
    read_trials,
    write_scores,
)
from helpers import refusal

TRIALS = [Trial("ada", "ada/5.wav", True), Trial("ada", "bo/1.wav", False)]
words = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=8)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "list.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


Written = Callable[[str | bytes], Path]


def test_kaldis_list_is_read(written: Written) -> None:
    assert read_trials(written("ada ada/5.wav target\n\nada\tbo/1.wav nontarget\r\n")) == TRIALS


def test_voxcelebs_list_is_read(written: Written) -> None:
    assert read_trials(written("1 ada ada/5.wav\n0 ada bo/1.wav")) == TRIALS


def test_lfws_pairs_are_read_with_the_paths_of_its_pictures(written: Written) -> None:
    got = read_trials(written("1\t1\nAbel_Pacheco\t1\t4\nAda\t2\tBo\t13\n"))
    assert got == [
        Trial("Abel_Pacheco/Abel_Pacheco_0001.jpg", "Abel_Pacheco/Abel_Pacheco_0004.jpg", True),
        Trial("Ada/Ada_0002.jpg", "Bo/Bo_0013.jpg", False),
    ]


def test_lfws_list_for_development_has_one_number_at_its_head(written: Written) -> None:
    assert [trial.target for trial in read_trials(written("2\na 1 2\nb 1 3\na 1 b 1\nc 1 d 2\n"))] == [True] * 2 + [
        False
    ] * 2


def test_scores_are_read_with_and_without_labels(written: Written) -> None:
    got = read_scores(written("ada ada/5.wav 0.5 target\nada bo/1.wav -1e-3\n"))
    assert got == [Scored("ada", "ada/5.wav", 0.5, True), Scored("ada", "bo/1.wav", -0.001, None)]


@given(st.lists(st.tuples(words, words, st.booleans()).map(lambda each: Trial(*each)), min_size=1, max_size=6))
def test_a_written_list_is_read_again(tmp_path_factory: pytest.TempPathFactory, trials: list[Trial]) -> None:
    path = tmp_path_factory.mktemp("lists") / "list"
    path.write_text("".join(f"{e} {t} {'target' if same else 'nontarget'}\n" for e, t, same in trials), newline="")
    assert read_trials(path) == trials
    path.write_text("".join(f"{same:d} {e} {t}\n" for e, t, same in trials), newline="")
    if trials[0].tested not in ("target", "nontarget"):  # then its first line looks like Kaldi's
        assert read_trials(path) == trials


@given(st.lists(st.tuples(words, words, st.floats(-1e9, 1e9), st.sampled_from([True, False, None])), min_size=1))
def test_written_scores_are_read_again_to_the_last_digit(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, float, bool | None]]
) -> None:
    path = tmp_path_factory.mktemp("scores") / "scores"
    scores = [Scored(*row) for row in rows]
    write_scores(path, scores)
    assert read_scores(path) == scores


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no trials in it"),
        ("\n \n", "has no trials in it"),
        ("ada bo\n", "line 1: got 'ada bo'; wanted 'enrolled tested target|nontarget', '1|0 enrolled tested' or LFW's"),
        ("ada a target\nada b maybe\n", "line 2: got 'ada b maybe'; wanted enrolled tested target|nontarget"),
        ("1 a b\n\n2 a b\n", "line 3: got '2 a b'; wanted 1|0 enrolled tested"),
        ("1 1\na 1 2\na 1 a 2\n", "line 3: got 'a 1 a 2'; wanted Name 1 2, or Name 1 Other_Name 2"),
        ("1 2\na 1 2\na 1 b 2\n", "has 2 pairs, its first line says 4"),
        ("99999 99999\n", "line 1: 19,999,600,002 pairs; wanted at most 100,000,000"),
        ("1 a " + "b" * 5000, "line 1: 5,004 characters; wanted at most 4,096"),
        ("1 a b\x1b[2J\n", "line 1: '1 a b\\x1b[2J' has characters that cannot be printed"),
        (b"1 a \xff\n", "it is not UTF-8"),
    ],
)
def test_a_wrong_list_is_refused_with_its_line(written: Written, text: str | bytes, told: str) -> None:
    path = written(text)
    assert told in refusal(lambda: read_trials(path))


@pytest.mark.parametrize("line", ["a b", "a b c", "a b nan", "a b inf", "a b 1 yes", "a b 1 target x"])
def test_a_wrong_score_is_refused_with_its_line(written: Written, line: str) -> None:
    path = written(f"a b 1\n{line}\n")
    assert f"{path}, line 2: got '{line}'; wanted" in refusal(lambda: read_scores(path))


def test_names_that_would_break_a_list_are_not_written(tmp_path: Path) -> None:
    assert "cannot stand in a list" in refusal(
        lambda: write_scores(tmp_path / "list", [Scored("two words", "b", 0.5, True)])
    )
    assert list(tmp_path.iterdir()) == []


def test_scores_get_the_labels_of_the_list_and_none_may_be_missing() -> None:
    scores = [Scored("ada", trial.tested, 0.1, None) for trial in reversed(TRIALS)]
    assert [(each.tested, each.target) for each in labelled(scores, TRIALS)] == [
        ("ada/5.wav", True),
        ("bo/1.wav", False),
    ]
    assert "1 of 2 trials have no score, first 'ada' with 'ada/5.wav'" in refusal(lambda: labelled(scores[:1], TRIALS))


def test_comparisons_know_people_by_their_folders() -> None:
    found = compared([Scored("ada/1", "ada/5", 0.9, True), Scored("ada/1", "bo/1", 0.1, False)])
    assert (found.targets.tolist(), found.nontargets.tolist(), found.num_people) == ([0.9], [0.1], 2)
    assert len(np.unique(found.example)) == 2


def test_labels_that_contradict_the_folders_are_refused() -> None:
    told = refusal(lambda: compared([Scored("ada", "utterance5", 0.9, True)]))
    assert "are a target trial, by their names they are of 'ada' and 'utterance5'" in told
