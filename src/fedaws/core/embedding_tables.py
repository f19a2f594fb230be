r"""Tables: parameters of which a round touches few rows, such as feature embeddings.

Their gradients and deltas are sparse tensors (row numbers and rows, each row once); whatever has a dense delta is no
table. A round reads and writes the rows it touches and nothing else, so a table may be as large as memory.
"""

import torch
from torch import Tensor

from fedaws.config import ServerConfig
from fedaws.sparse import add_up
from fedaws.types import CLASS_MATRIX, ROW_SQUARES, Params, ServerState

_EPS = 1e-12  # a mean over thousands of clients is small; only a row that has not moved at all is to be kept from 0/0


def mean_rows(parts: list[tuple[float, Tensor]], total: float) -> Tensor:
    """Σ weight · delta / total of sparse deltas; a row that a part does not have counts as zero there."""
    if len(parts) == 1 and parts[0][0] == total:
        return parts[0][1].coalesce()
    ids = torch.cat([delta._indices()[0] for _, delta in parts])
    rows = torch.cat([delta._values() * (weight / total) for weight, delta in parts])
    return add_up(ids, torch.arange(len(ids), device=ids.device), rows, None, parts[0][1].shape[0])


def step_tables(
    state: ServerState, delta: Params, cfg: ServerConfig, factor: float, in_place: bool
) -> tuple[Params, dict[str, Params]]:
    r"""The server's step on its tables, and their new memory; `in_place` changes the touched rows of θ themselves.

    sgd: :math:`\eta \Delta_r`. adagrad, one accumulator a row: :math:`s_r \leftarrow s_r + \|\Delta_r\|^2`, step
    :math:`\eta \Delta_r / \sqrt{s_r}`, never longer than η. The mean over thousands of clients makes :math:`\Delta_r`
    tiny, which only sgd has to make up for by a large η. `factor` is the schedule's, already in the delta: the
    accumulator is to see what the delta would be without it.
    """
    lr = cfg.lr if cfg.table_lr is None else cfg.table_lr
    moved, squares = Params(), Params(state.slots.get(ROW_SQUARES, {}))
    for name, change in delta.items():
        if not change.is_sparse:
            continue
        ids, rows = change.indices()[0], change.values()
        if cfg.table_optimizer == "adagrad":
            if name not in squares:
                squares[name] = rows.new_zeros(change.shape[0])
            elif not in_place:
                squares[name] = squares[name].clone()
            squares[name].index_add_(0, ids, (_lengths(rows) / factor).square_())
            rows = rows * _as_column(lr / (squares[name].index_select(0, ids).sqrt_() + _EPS), rows)
        else:
            rows = rows * lr
        table = state.W if name == CLASS_MATRIX else state.theta[name]
        moved[name] = (table if in_place else table.clone()).index_add_(0, ids, rows)
    return moved, {ROW_SQUARES: squares} if squares else {}


def _lengths(rows: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(rows.flatten(1), dim=1)
    return lengths


def _as_column(values: Tensor, rows: Tensor) -> Tensor:
    return values.view(-1, *[1] * (rows.ndim - 1))
