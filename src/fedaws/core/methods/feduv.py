r"""FedUV (Hosseini et al., ICML 2021; not the method of 2024 with that name): secret error-correcting codewords.

Client u's row is a codeword v_u ∈ {±1}^c of a BCH code, of the message b_u ‖ r_u: b_u is its number, given by the
server so that no two are alike, r_u is drawn by the client. Nobody but the client, not even the server, learns v_u;
only θ travels, with its last layer into c dimensions. With σ the scaling to length √c the loss is

.. math:: \max\Big(0,\ 1 - \tfrac1c\, v_u \cdot \sigma(g(x))\Big) = 1 - \cos(v_u, g(x))

so that `model.embedding_dim` is the code's length: 127, 255 or 511. In a simulation the rows stand in W, for the
measures; no client and no step of the server reads another's.
"""

import torch
from torch import Tensor

from fedaws.config import Config
from fedaws.core.method import Method
from fedaws.errors import FedawsError
from fedaws.types import ClassFacts

# Length → (bits of the message, designed distance, a primitive polynomial of the field), as in the paper's table.
CODES = {127: (64, 21, 0b10001001), 255: (71, 59, 0b100011101), 511: (67, 175, 0b1000010001)}
_NUMBER = 32  # bits of the message that are the client's number


def method(cfg: Config, _: ClassFacts | None) -> Method:
    """Secret rows, a linear loss, nothing on the server."""
    return Method("feduv", "FedUV, secret codewords", "secret", linear_hinge, start=codewords)


def linear_hinge(embeddings: Tensor, w: Tensor) -> Tensor:
    """max(0, 1 − g · w) of unit vectors, [B]."""
    return (1 - (embeddings * w).sum(-1)).clamp_min(0)


def codewords(rows: Tensor) -> Tensor:
    """A codeword a class, at unit length; the random part of its message is the signs of its random row."""
    count, length = rows.shape
    if length not in CODES:
        raise FedawsError(f"model.embedding_dim={length} is no code's length; wanted 127, 255 or 511 for method=feduv")
    bits, distance, field = CODES[length]
    numbers = torch.arange(count, device=rows.device)[:, None] >> torch.arange(_NUMBER, device=rows.device) & 1
    message = torch.cat([numbers.bool(), rows[:, : bits - _NUMBER] > 0], dim=1).to(torch.float32)
    generator = torch.tensor([int(bit) for bit in f"{generator_polynomial(length, distance, field):b}"])
    shifts = torch.zeros(bits, length, device=rows.device)
    for place in range(bits):
        shifts[place, place : place + len(generator)] = generator.to(shifts)
    return (message @ shifts % 2).mul_(2).sub_(1).mul_(length**-0.5).to(rows.dtype)


def generator_polynomial(length: int, distance: int, field: int) -> int:
    """The least polynomial over GF(2) with the roots α, α², …, α^(distance − 1); bits are its coefficients."""
    powers = [1]
    for _ in range(length - 1):
        doubled = powers[-1] << 1
        powers.append(doubled ^ field if doubled > length else doubled)
    log = {value: exponent for exponent, value in enumerate(powers)}
    roots = {exponent * 2**i % length for exponent in range(1, distance) for i in range(length.bit_length())}
    product = [1]  # coefficients in the field, highest first: Π (x − α^e)
    for root in roots:
        scaled = [powers[(log[c] + root) % length] if c else 0 for c in product]
        product = [a ^ b for a, b in zip([*product, 0], [0, *scaled], strict=True)]
    return int("".join(map(str, product)), 2)
