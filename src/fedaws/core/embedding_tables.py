r"""Embedding tables: parameters of which a round touches few rows, such as feature embeddings.

Their gradients and deltas are sparse tensors (row numbers and rows, each row once); whatever has a dense delta is no
table. A round reads and writes the rows it touches and nothing else, so a table may be as large as memory.
"""

import torch
from torch import Tensor

from fedaws.config import ServerConfig
from fedaws.sparse import add_up
from fedaws.types import Memory, Params

_EPS = 1e-12  # a mean over thousands of clients is small; only a row that has not moved at all is to be kept from 0/0


def mean_rows(parts: list[tuple[float, Tensor]], total: float) -> Tensor:
    """Σ weight · delta / total of sparse deltas; a row that a part does not have counts as zero there."""
    if len(parts) == 1 and parts[0][0] == total:
        return parts[0][1].coalesce()
    ids = torch.cat([delta._indices()[0] for _, delta in parts])
    rows = torch.cat([delta._values() * (weight / total) for weight, delta in parts])
    return add_up(ids, torch.arange(len(ids), device=ids.device), rows, None, parts[0][1].shape[0])


def init_tables(tables: Params, cfg: ServerConfig) -> Memory:
    """The tables' memory before their first step: for adagrad a number for each row."""
    if cfg.table_optimizer == "sgd":
        return {}
    return {name: table.new_zeros(len(table)) for name, table in tables.items()}


def step_table_(name: str, table: Tensor, change: Tensor, memory: Memory, cfg: ServerConfig, factor: float) -> Tensor:
    r"""The server's step on a table and on its memory, in place, row by row of the sparse `change`.

    sgd: :math:`\eta \Delta_r`. adagrad, one accumulator a row: :math:`s_r \leftarrow s_r + \|\Delta_r\|^2`, step
    :math:`\eta \Delta_r / \sqrt{s_r}`, never longer than η. The mean over thousands of clients makes :math:`\Delta_r`
    tiny, which only sgd has to make up for by a large η. `factor` is the schedule's, already in the delta: the
    accumulator is to see what the delta would be without it.
    """
    lr = cfg.lr if cfg.table_lr is None else cfg.table_lr
    ids, rows = change.indices()[0], change.values()
    if cfg.table_optimizer == "sgd":
        return table.index_add_(0, ids, rows * lr)
    squares = memory.setdefault(name, rows.new_zeros(len(table)))
    squares.index_add_(0, ids, (torch.linalg.vector_norm(rows.flatten(1), dim=1) / factor).square_())
    scale = lr / (squares.index_select(0, ids).sqrt_() + _EPS)
    return table.index_add_(0, ids, rows * scale.view(-1, *[1] * (rows.ndim - 1)))
