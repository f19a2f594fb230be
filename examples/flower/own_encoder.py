"""An encoder of your own over Flower: both apps, in one file that server and nodes have.

In the pyproject.toml beside it: serverapp = "own_encoder:server" and clientapp = "own_encoder:client".
"""

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from fedaws import Config
from fedaws.flower import FedAwS
from fedaws.flower.client_app import summed, trained

CONFIG = Config().override(["clients.local_steps=10", "model.embedding_dim=32", "train.rounds=12", "train.enroll=0.5"])
CLASS_OF = {"alice": 0, "bob": 1, "carol": 2}  # by the names under which the nodes are registered


def make_encoder() -> nn.Module:
    """From an example [64] to 32 numbers; their length does not matter."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and keep the model."""
    encoder = make_encoder()
    strategy = FedAwS(CLASS_OF, config=CONFIG)
    result = strategy.start(grid, ArrayRecord(encoder.state_dict()), num_rounds=CONFIG.train.rounds, timeout=120)
    encoder.load_state_dict(result.arrays.to_torch_state_dict())
    torch.save({"encoder": encoder.state_dict(), "W": strategy.state.W}, str(context.run_config["model"]))


client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """A round: local steps on this node's examples."""
    return trained(message, examples(context), make_encoder())


@client.query("sums")
def tell_sums(message: Message, context: Context) -> Message:
    """After the last round, only because of train.enroll: the number of examples and the sum of their embeddings."""
    return summed(message, examples(context), make_encoder())


def examples(context: Context) -> torch.Tensor:
    """The array x of the file that this node was started with: --node-config 'data="…"'."""
    return torch.from_numpy(np.load(str(context.node_config["data"]))["x"]).float()
