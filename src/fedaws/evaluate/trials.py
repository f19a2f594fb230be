"""Trial lists and score files as the field writes them: who is compared with whom, and what came out.

| | a line |
|---|---|
| Kaldi, WeSpeaker | `enrolled tested target` or `… nontarget` |
| their scores | `enrolled tested 0.731`, with or without `target` or `nontarget` behind |
| VoxCeleb | `1 enrolled tested` or `0 …` |
| LFW's pairs.txt (read only) | a head `10 300`, then `Name 1 4` or `Name 1 Other_Name 2`, parted by tabs |
"""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from fedaws.errors import FedawsError
from fedaws.evaluate.comparisons import Comparisons
from fedaws.files import atomically, read_text

_LARGEST = 1 << 29  # bytes of a list
_LONGEST = 4096  # characters of a line
_LABELS = {"target": True, "nontarget": False}
_DIGITS = {"1": True, "0": False}
_MOST_PAIRS = 100_000_000

_Line = TypeVar("_Line")


class Trial(NamedTuple):
    """Is `tested` an example of who was enrolled by `enrolled`?"""

    enrolled: str
    tested: str
    target: bool


class Scored(NamedTuple):
    """What a system says to a trial; None: the file does not say what is true."""

    enrolled: str
    tested: str
    score: float
    target: bool | None


# --- in -------------------------------------------------------------------------------------------------------------


def read_trials(path: Path) -> list[Trial]:
    """The trials of a list of any of these kinds; its first line shows which."""
    lines = _lines(path)
    parse = _parser(path, *lines[0])
    if parse is _lfw:
        return _lfw_trials(path, lines)
    return [_parse_line(path, number, parse, words) for number, words in lines]


def read_scores(path: Path) -> list[Scored]:
    """The scores of a file `enrolled tested score [target|nontarget]`."""
    return [_parse_line(path, number, _score, words) for number, words in _lines(path)]


def labelled(scores: Iterable[Scored], trials: Iterable[Trial]) -> list[Scored]:
    """The scores of all trials of a list, with what the list says is true.

    >>> labelled([Scored("ada", "a.wav", 0.7, None)], [Trial("ada", "a.wav", True)])
    [Scored(enrolled='ada', tested='a.wav', score=0.7, target=True)]
    """
    found = {(each.enrolled, each.tested): each.score for each in scores}
    known = list(trials)
    missing = [trial for trial in known if trial[:2] not in found]
    if missing:
        raise FedawsError(
            f"{len(missing):,} of {len(known):,} trials have no score, first {missing[0].enrolled!r} with "
            f"{missing[0].tested!r}; score all of the list"
        )
    return [Scored(trial.enrolled, trial.tested, found[trial[:2]], trial.target) for trial in known]


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """(number, words) of the lines that are not empty."""
    found = []
    for number, line in enumerate(read_text(path, _LARGEST).split("\n"), 1):
        if len(line) > _LONGEST:
            raise _line_error(path, number, f"{len(line):,} characters; wanted at most {_LONGEST:,}")
        words = line.split()
        if not all(word.isprintable() for word in words):
            raise _line_error(path, number, f"{line!a:.80} has characters that cannot be printed")
        if words:
            found.append((number, words))
    if not found:
        raise FedawsError(f"{path} has no trials in it; wanted lines as in 'ada ada/5.wav target'")
    return found


def _parser(path: Path, number: int, words: list[str]) -> Callable[[list[str]], Trial]:
    if len(words) == 3 and words[2] in _LABELS:
        return _kaldi
    if len(words) == 3 and words[0] in _DIGITS:
        return _voxceleb
    if len(words) <= 2 and all(_is_number(word) for word in words):
        return _lfw
    kinds = "'enrolled tested target|nontarget', '1|0 enrolled tested' or LFW's '10 300'"
    raise _line_error(path, number, f"got {' '.join(words)!r:.80}; wanted {kinds}")


def _kaldi(words: list[str]) -> Trial:
    if len(words) != 3 or words[2] not in _LABELS:
        raise ValueError("enrolled tested target|nontarget")
    return Trial(words[0], words[1], _LABELS[words[2]])


def _voxceleb(words: list[str]) -> Trial:
    if len(words) != 3 or words[0] not in _DIGITS:
        raise ValueError("1|0 enrolled tested")
    return Trial(words[1], words[2], _DIGITS[words[0]])


def _lfw(words: list[str]) -> Trial:
    match words:
        case [name, one, two] if _is_number(one) and _is_number(two):
            return Trial(_picture(name, one), _picture(name, two), True)
        case [name, one, other, two] if name != other and _is_number(one) and _is_number(two):
            return Trial(_picture(name, one), _picture(other, two), False)
    raise ValueError("Name 1 2, or Name 1 Other_Name 2")


def _lfw_trials(path: Path, lines: list[tuple[int, list[str]]]) -> list[Trial]:
    """Sets of as many pairs of one person as of two."""
    number, head = lines[0]
    wanted = 2 * math.prod(map(int, head))
    if wanted > _MOST_PAIRS:
        raise _line_error(path, number, f"{wanted:,} pairs; wanted at most {_MOST_PAIRS:,}")
    trials = [_parse_line(path, number, _lfw, words) for number, words in lines[1:]]
    if len(trials) != wanted:
        raise FedawsError(
            f"{path} has {len(trials):,} pairs, its first line says {wanted:,}; it was cut short or mixed"
        )
    return trials


def _score(words: list[str]) -> Scored:
    if len(words) not in (3, 4) or (len(words) == 4 and words[3] not in _LABELS):
        raise ValueError("enrolled tested score [target|nontarget]")
    try:
        score = float(words[2])
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise ValueError("a finite number as score")
    return Scored(words[0], words[1], score, _LABELS[words[3]] if len(words) == 4 else None)


def _parse_line(path: Path, number: int, parse: Callable[[list[str]], _Line], words: list[str]) -> _Line:
    try:
        return parse(words)
    except ValueError as wanted:
        raise _line_error(path, number, f"got {' '.join(words)!r:.80}; wanted {wanted}") from None


def _line_error(path: Path, number: int, problem: str) -> FedawsError:
    return FedawsError(f"{path}, line {number}: {problem}")


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 10


def _picture(name: str, number: str) -> str:
    """Where LFW keeps it: Name/Name_0001.jpg."""
    return f"{name}/{name}_{int(number):04d}.jpg"


# --- out ------------------------------------------------------------------------------------------------------------


def write_scores(path: Path, scores: Iterable[Scored]) -> None:
    """`enrolled tested score`, and `target` or `nontarget` where it is known."""
    with atomically(path) as file:
        for words in map(_score_words, scores):
            broken = [word for word in words if not word or not word.isprintable() or word.split() != [word]]
            if broken:
                raise FedawsError(f"{broken[0]!r} cannot stand in a list, whose words are parted by spaces; rename it")
            file.write(" ".join(words).encode() + b"\n")


def _score_words(each: Scored) -> list[str]:
    return [each.enrolled, each.tested, repr(float(each.score)), *([] if each.target is None else [_word(each.target)])]


def _word(target: bool) -> str:
    return "target" if target else "nontarget"


# --- whose ----------------------------------------------------------------------------------------------------------


def person_of(name: str) -> str:
    """Whose an example is, by the folder it lies in, as in VoxCeleb and LFW; without a folder, itself.

    >>> person_of("id10270/5r0dWxy17C8/00001.wav"), person_of("ada")
    ('id10270', 'ada')
    """
    return name.partition("/")[0]


def compared(scores: Sequence[Scored], person: Callable[[str], str] = person_of) -> Comparisons:
    """Scores with the people they are of, for intervals; refused where names and labels speak of different people."""
    if not scores:
        raise FedawsError("there are no scores; wanted at least one")
    sides = [(person(each.enrolled), person(each.tested)) for each in scores]
    for each, (claimed, tested) in zip(scores, sides, strict=True):
        if each.target is not None and each.target != (claimed == tested):
            raise FedawsError(
                f"{each.enrolled!r} and {each.tested!r} are a {_word(each.target)} trial, by their names they are of "
                f"{claimed!r} and {tested!r}; name examples person/file, or say whose they are"
            )
    _, people = np.unique(np.array(sides).ravel(), return_inverse=True)
    _, example = np.unique(np.array([each.tested for each in scores]), return_inverse=True)
    claimed_tested = people.reshape(-1, 2)
    return Comparisons(
        np.array([each.score for each in scores]), claimed_tested[:, 0], claimed_tested[:, 1], example.astype(np.int64)
    )
