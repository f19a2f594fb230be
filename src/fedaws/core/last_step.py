r"""After the last round: W from what all clients tell once of their embeddings z under the final θ.

The paper has no such step. Each client takes part once, with all its examples, and sends their number n and Σz; for the
steps by second moments also Σzzᵀ, which is only needed as a sum over all clients.
"""

from dataclasses import replace
from typing import assert_never

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaws.config import Config
from fedaws.core.method import LastStep, Method
from fedaws.core.rows import changed, here
from fedaws.errors import FedawsError
from fedaws.types import AskSums, Params, ServerState, Sums


def make_last_step(cfg: Config, method: Method) -> LastStep | None:
    """The method's own, or what `train.last_step` and `train.enroll` say; None for none."""
    if (method.last_step or method.rows == "secret") and (cfg.train.enroll or cfg.train.last_step != "none"):
        why = "has a last step of its own" if method.last_step else "keeps rows secret, and sums would tell them"
        raise FedawsError(f"method={cfg.method} {why}; set train.enroll=0 and train.last_step=none")
    if method.last_step:
        return method.last_step
    match cfg.train.last_step:
        case "none" if cfg.train.enroll:
            return LastStep(lambda W, sums: (enroll(W, sums.sums, cfg.train.enroll), None))
        case "none":
            return None
        case "ridge":
            return LastStep(lambda W, sums: (ridge(sums, cfg.train.ridge), None), wants_gram=True)
        case "lda":
            return LastStep(lambda W, sums: shared_covariance(sums, cfg.train.ridge), wants_gram=True)
        case _:
            assert_never(cfg.train.last_step)


def take_last_step(state: ServerState, theta: Params, step: LastStep, ask_sums: AskSums) -> ServerState:
    """The state with the W, and perhaps the bias, that the step makes."""
    made = step.step(state.W, ask_sums(theta, step.wants_gram))
    if not isinstance(made, tuple) or len(made) != 2 or made[0].shape != state.W.shape:
        raise FedawsError(
            f"the method's last step gave {type(made).__name__}; wanted W {tuple(state.W.shape)} and a bias"
        )
    W, bias = made
    if bias is not None and (bias.shape != W.shape[:1] or not bool(bias.isfinite().all())):
        raise FedawsError(
            f"the method's last step gave a bias {tuple(bias.shape)}; wanted {len(W)} finite numbers or None"
        )
    return replace(state, W=W, bias=bias)


def enroll(W: Tensor, sums: Tensor, weight: float) -> Tensor:
    r"""Each unit row with so much of the direction of its class's mean embedding added; θ stays as it is.

    .. math:: w_c \leftarrow \frac{w_c + a \hat\mu_c}{\|w_c + a \hat\mu_c\|}, \qquad
              \hat\mu_c = \frac{\Sigma z}{\|\Sigma z\|}

    A step on the row by a linear loss would add the same. A class without examples keeps its row.

    >>> enroll(torch.eye(2), torch.tensor([[0.0, 0.3], [0.0, 0.0]]), 1.0)
    tensor([[0.7071, 0.7071],
            [0.0000, 1.0000]])
    """
    return changed(W, lambda rows: F.normalize(rows + weight * F.normalize(here(sums), dim=1), dim=1))


def ridge(sums: Sums, weight: float) -> Tensor:
    r"""Ridge regression of the labels on the embeddings (SphereFed: Dong et al. 2022; Fed3R: Fanì et al. 2024).

    .. math:: w_c = \Big(G + \lambda \bar g I\Big)^{-1} \sum_{x \in c} z, \qquad G = \Sigma z z^T, \quad
              \bar g = \operatorname{tr} G / d

    λ counts in the mean of G's eigenvalues, so that it means the same whatever the number of examples and dimensions.
    Rows have unequal lengths; a class without examples gets 0.

    >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])  # classes 0, 1, 1
    >>> ridge(Sums(torch.tensor([1, 2]), torch.tensor([[1.0, 0.0], [0.0, 2.0]]), z.T @ z), weight=1.0)
    tensor([[0.4000, 0.0000],
            [0.0000, 0.5714]])
    """
    gram = _second_moment(sums)
    regular = gram + _ridge(gram, weight)
    rows: Tensor = torch.linalg.solve(regular, sums.sums.T.to(gram.dtype)).T
    return rows.to(sums.sums.dtype).contiguous()


def shared_covariance(sums: Sums, weight: float) -> tuple[Tensor, Tensor]:
    r"""Linear discriminant analysis: Gaussian classes with one covariance and the classes' own frequencies.

    .. math:: w_c = \Sigma^{-1} \mu_c, \quad b_c = \log \pi_c - \tfrac12 \mu_c^T \Sigma^{-1} \mu_c, \quad
              \Sigma = \tfrac1n \Big(G - \sum_c n_c \mu_c \mu_c^T + \lambda \bar g I\Big)

    :math:`\pi_c = (n_c + ½)/(n + C/2)`, so that a class without examples, with μ = 0, is not impossible.
    """
    gram = _second_moment(sums)
    counts = sums.counts.to(gram.dtype)
    means = sums.sums.to(gram.dtype) / counts.clamp_min(1)[:, None]
    within = gram - (counts[:, None] * means).T @ means
    covariance = (within + _ridge(gram, weight)) / counts.sum()
    rows = torch.linalg.solve(covariance, means.T).T
    prior = ((counts + 0.5) / (counts.sum() + 0.5 * len(counts))).log()
    bias = prior - 0.5 * (rows * means).sum(1)
    return rows.to(sums.sums.dtype).contiguous(), bias.to(sums.sums.dtype)


def _ridge(gram: Tensor, weight: float) -> Tensor:
    return torch.eye(len(gram), dtype=gram.dtype, device=gram.device) * (weight * gram.trace() / len(gram))


def _second_moment(sums: Sums) -> Tensor:
    """In double precision: its small eigenvalues decide."""
    assert sums.gram is not None
    return sums.gram.double()
