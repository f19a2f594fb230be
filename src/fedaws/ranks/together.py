"""A run of several ranks: the pieces of `fedaws.train` that differ from one process, and nothing else."""

from pathlib import Path

from torch import Tensor, nn

from fedaws.config import Config
from fedaws.core.method import Method
from fedaws.core.start import mean_rows, random_rows, start_state
from fedaws.models import table_names, trainable
from fedaws.ranks.clients import over_ranks
from fedaws.ranks.data import SharedData, ranks_of
from fedaws.ranks.folder import SharedFolder
from fedaws.ranks.group import Ranks
from fedaws.ranks.model import SharedModel
from fedaws.ranks.rows import SharedRows
from fedaws.ranks.sums import ask_shared_sums
from fedaws.ranks.tables import BagClients, SharedTable, keep_own_rows
from fedaws.runners import make_runner
from fedaws.types import AskSums, Params, RunClients, ServerState


class Together:
    """What this rank has of a run. Of the encoder's table, if it has one, only its own rows are left."""

    def __init__(self, ranks: Ranks, cfg: Config, method: Method, data: SharedData, encoder: nn.Module) -> None:
        self._ranks, self._cfg, self._method, self._data, self._encoder = ranks, cfg, method, data, encoder
        sizes = {name: len(trainable(encoder)[name]) for name in table_names(encoder)}
        name = keep_own_rows(encoder, ranks)
        self._tables = sizes
        self._clients = BagClients(cfg, method, data.own) if name else None
        self._table = SharedTable(ranks, name, self._clients) if name and self._clients else None

    def runner(self) -> RunClients:
        """Runs this rank's share of the clients."""
        run_clients = make_runner(self._cfg, self._method, self._data.own, self._encoder, self._clients)
        rank_of = ranks_of(self._data.class_of, self._ranks.world)
        return over_ranks(run_clients, self._ranks, rank_of, self._method.trains_own_row, self._table)

    def start(self) -> ServerState:
        """The state before round 0, with this rank's rows."""
        ranks, count = self._ranks, self._data.num_classes
        rows: Tensor = SharedRows(random_rows(self._cfg, count, ranks.rank, ranks.world), count, ranks)
        theta = {name: p.detach() for name, p in trainable(self._encoder).items()}
        if self._cfg.model.start_rows == "means":
            ask = ask_shared_sums(self._model(theta, rows), self._data)
            rows = mean_rows(ask(theta, False), rows)
        return start_state(self._cfg, self._method, theta, rows, self._data.class_of, table_names(self._encoder))

    def folder(self, path: Path) -> SharedFolder:
        """The run's folder, of which this rank writes its part."""
        return SharedFolder(path, self._ranks, self._tables)

    def ask(self, state: ServerState) -> AskSums:
        """Asks the clients for the sums of their embeddings."""
        return ask_shared_sums(self.model(state), self._data)

    def model(self, state: ServerState) -> SharedModel:
        """The model to measure."""
        return self._model(state.averaged, state.W)

    def _model(self, theta: Params, rows: Tensor) -> SharedModel:
        cfg, ranks = self._cfg.model, self._ranks
        return SharedModel(
            self._encoder, theta, rows, cfg.normalize, crowding=cfg.crowding, ranks=ranks, table=self._table
        )
