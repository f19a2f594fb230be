r"""ε from below for one person: many small private trainings with them and without, told apart by all θ of each.

The attacker knows everything but whether the person took part: everybody's examples, the settings, every θ. Of each
round it takes what the others would have sent (times their chance to be there) from what was released, and asks how far
the rest goes along the person's own clipped change:

.. math:: s = \sum_t \Big\langle n(\theta^{t+1} - \theta^t) - q \sum_{j \ne i} \Delta_j(\theta^t),\;
          \Delta_i(\theta^t) / \|\Delta_i(\theta^t)\| \Big\rangle

which, with everybody in each round, is the best test there is of a Gaussian. The scores bound ε by `epsilon_at_least`.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedaws.audit.federation import protection_of
from fedaws.audit.membership import epsilon_at_least
from fedaws.config import Config
from fedaws.core.aggregate import Aggregate, aggregate
from fedaws.core.algorithm import broadcast, run_round
from fedaws.core.methods import method_of
from fedaws.data.federated import FederatedData
from fedaws.errors import FedawsError
from fedaws.models import build_encoder, evaluating
from fedaws.privacy.accountant import epsilon
from fedaws.privacy.mechanism import Uniform, from_the_system
from fedaws.runners import make_runner
from fedaws.training.train import initial_state


@dataclass(frozen=True)
class Canary:
    """What an attack shows of ε, and what the accountant says of it."""

    at_least: float  # at 95 % confidence
    at_most: float  # by the accountant
    delta: float
    runs: int  # with the person, and as many without


def canary(cfg: Config, data: FederatedData, person: int, runs: int, uniform: Uniform = from_the_system) -> Canary:
    """Train so often with a person and so often without, privately, and bound ε from below.

    The settings are to have plain averaging at the server and a constant schedule, with which θ shows what was
    released.
    """
    if cfg.server.optimizer != "sgd" or cfg.server.momentum or cfg.train.schedule != "constant":
        raise FedawsError("a canary reads releases off θ; set server.optimizer=sgd, its momentum=0, schedule=constant")
    method, encoder = method_of(cfg), build_encoder(cfg.model, data.x.shape[1:], cfg.seed)
    everybody = len(data.available)
    made = protection_of(cfg, method, data, encoder)
    if made is None:
        raise FedawsError("a canary is of private training; set privacy.clip and privacy.epsilon or privacy.noise")
    private = replace(made, uniform=uniform)
    others = data.available[data.available != person]
    rng = torch.Generator().manual_seed(cfg.seed)
    with evaluating(encoder):
        run_clients = make_runner(cfg, method, data, encoder)
        first = initial_state(cfg, data, encoder, method)

        def score(available: Tensor) -> float:
            state, total = first, 0.0
            for _ in range(cfg.train.rounds):
                after = run_round(state, available, run_clients, cfg, rng, method=method, guard=private.guard)
                mine = _sum(aggregate(state, run_clients(broadcast(state, data.available[[person]]))))
                rest = _sum(aggregate(state, run_clients(broadcast(state, others))))
                moved = torch.cat([(after.theta[k] - state.theta[k]).flatten() for k in state.theta])
                released = moved.double() * private.expected / cfg.server.lr - rest * private.expected / everybody
                total += float(released @ mine / mine.norm().clamp_min(1e-30))
                state = after
            return total

        inside, outside = ([score(ids) for _ in range(runs)] for ids in (data.available, others))
    spent = epsilon(private.noise, private.delta, cfg.train.rounds, private.cohorts)
    return Canary(epsilon_at_least(inside, outside, private.delta), spent, private.delta, runs)


def _sum(total: Aggregate) -> Tensor:
    """The sum of the clients' clipped changes, all of θ in one vector."""
    parts = [change.to_dense() if change.is_sparse else change for change in total.delta.values()]
    return torch.cat([part.flatten() for part in parts]).double() * len(total.cohort)
