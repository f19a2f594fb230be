"""A mistake is one line, whatever it quotes."""

import pytest

from fedaws import FedawsError


@pytest.mark.parametrize("quoted", ["a\nb", "a\fb", "a\x1d", "\x1b[2J", "\r", "\u2028"])
def test_what_a_message_quotes_cannot_end_the_line_or_command_the_terminal(quoted: str) -> None:
    message = str(FedawsError(f"got {quoted}"))
    assert message.isprintable()
    assert len(message.splitlines()) == 1


def test_other_letters_stay_as_they_are() -> None:
    assert str(FedawsError("ünï … λ × 3")) == "ünï … λ × 3"
