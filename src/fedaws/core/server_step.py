r"""The server's optimiser: of θ by the clients' mean change, and of W where clients train all of it.

The optimiser sees Δ / f with the schedule's factor f, and its step is multiplied by f, which is what a learning-rate
schedule does to any optimiser; for plain averaging the two cancel.
"""

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from fedaws.config import Config
from fedaws.core.embedding_tables import step_table_
from fedaws.core.method import Method
from fedaws.core.optimizers import is_matrix
from fedaws.core.sampled_classes import sampled_change
from fedaws.core.start import server_optimizer
from fedaws.types import Memory, Params, ServerState


def step_theta(state: ServerState, delta: Params, cfg: Config, method: Method, factor: float) -> ServerState:
    """θ after the step on its mean change, and the decay of its matrices; tables have an optimiser of their own."""
    if not delta:
        return state
    dense = {k: state.theta[k] for k, d in delta.items() if not d.is_sparse}
    step, optimizer = Params(), state.optimizer
    if dense:  # an encoder may be a table alone
        step, optimizer = _step(dense, delta, state.optimizer, cfg, method, factor)
    stays = 1 - cfg.server.weight_decay * (cfg.server.lr * factor)
    moved = {k: (v * stays if stays < 1 and is_matrix(v) else v) + step[k] for k, v in dense.items()}
    tables = dict(state.tables)
    for name in delta.keys() - dense.keys():
        step_table_(name, state.theta[name], delta[name], tables, cfg.server, factor)
    average = _averaged(state, moved, cfg.server.average)
    return replace(state, theta=state.theta | moved, optimizer=optimizer, tables=tables, average=average)


def step_all_rows(
    state: ServerState, shared: Tensor | None, classes: Tensor | None, cfg: Config, method: Method, factor: float
) -> ServerState:
    """W after the step on the mean change of the rows that an oracle's clients shared; of a sample only these move."""
    if shared is None:
        return state
    if classes is None:
        step, memory = _step({"W": state.W}, {"W": shared}, state.row_optimizer, cfg, method, factor)
        W = state.W + step["W"]
        return replace(state, W=F.normalize(W, dim=1) if cfg.model.normalize else W, row_optimizer=memory)
    memory = dict(state.row_optimizer)
    change = sampled_change(shared, classes, len(state.W))
    W, rows = step_table_("W", state.W, change, memory, cfg.server, factor), change.indices()[0]
    if cfg.model.normalize:
        W.index_copy_(0, rows, F.normalize(W.index_select(0, rows), dim=1))
    return replace(state, W=W, row_optimizer=memory)


def _step(
    params: Params, change: Params, memory: Memory, cfg: Config, method: Method, factor: float
) -> tuple[Params, Memory]:
    server = server_optimizer(cfg, method)
    direction = {k: change[k] if factor == 1 else change[k] / factor for k in params}
    return server.step(params, direction, memory or server.init(params), cfg.server.lr * factor)


def _averaged(state: ServerState, theta: Params, decay: float) -> Params:
    """The exponential average of θ, over fewer rounds at the start, so that θ⁰ is soon forgotten; not of tables, of
    which a round may touch few rows.
    """
    if not decay:
        return {}
    decay = min(decay, (state.round_num + 1) / (state.round_num + 10))
    return {k: state.averaged[k].lerp(v, 1 - decay) for k, v in theta.items()}
