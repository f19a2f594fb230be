"""The gradient of a loss of the score, where the loss is one's own."""

import torch
import torch.nn.functional as F

from fedaws.core.local import score_gradient
from fedaws.core.losses import OfScore


def test_a_slope_may_be_the_score_itself() -> None:
    torch.manual_seed(0)
    z = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    w = F.normalize(torch.randn(2, 1, 4, dtype=torch.float64), dim=-1).requires_grad_()
    share = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    risks = (0.5 * (F.normalize(z, dim=-1) * w).sum(-1).square() * share).sum(1)
    expected = risks, *torch.autograd.grad(risks.sum(), [z, w])
    got = score_gradient(OfScore(lambda s: 0.5 * s.square(), lambda s: s), z.detach(), w.detach(), share)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
