"""What only data, encoder and configuration together can show to be wrong, and what training may run into."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fedaws.config import Config, epochs_seen
from fedaws.core.local import on_sphere
from fedaws.core.method import LastStep, Method
from fedaws.core.rows import here
from fedaws.core.spreadout import reachable_margin, resolve_neighbors
from fedaws.data.augment import resized
from fedaws.data.federated import FederatedData, as_input
from fedaws.errors import FedawsError
from fedaws.evaluate.strangers import check_strangers
from fedaws.models import batch_norms, example_shape_fits, mixes_examples, model_tensors
from fedaws.privacy.ghost import can_ghost
from fedaws.sparse import SparseRows
from fedaws.training.register import check_moves
from fedaws.types import ServerState

Warn = Callable[[str], None]

COLLAPSED = 0.95
"""A largest class cosine above this is called a collapse."""


def check_setup(cfg: Config, method: Method, data: FederatedData, encoder: nn.Module, warn: Warn) -> None:
    """Refuse what cannot train, warn of what will not train well."""
    if any(isinstance(m, _BatchNorm) and not m.num_batches_tracked for m in encoder.modules()):
        # A pre-trained one has its statistics, and keeps them.
        raise FedawsError(
            "the encoder has BatchNorm that was never trained, and clients of one class cannot give its statistics; "
            "use GroupNorm or LayerNorm, or a pre-trained encoder"
        )
    example_shape_fits(encoder, as_input(data.x[:1]), cfg.model.embedding_dim)
    _check_images(cfg, data, encoder)
    _check_clients(cfg, method, data, warn)
    _check_encoder(cfg, data, encoder, warn)
    if "clients.margin" in method.replaces and method.rows != "all" and method.classes_per_client == 1:
        _check_loss(method, cfg.model.embedding_dim, data.x.device)
    people = check_moves(cfg, method, data, encoder)
    if method.spread and "spread.margin" not in method.replaces:
        _check_spread(cfg, data.num_classes, people.fewest, warn)
    for part, strangers in data.apart.items():
        check_strangers(part, strangers, cfg.data.enroll)
    if cfg.privacy.clip is not None:
        _check_clipping(cfg, method, data, encoder, warn)


def check_stop(cfg: Config, data: FederatedData, last_step: LastStep | None) -> None:
    """Refuse to choose a round by strangers who are not there, or where the last round is not the last word."""
    if data.strangers is None:
        raise FedawsError("train.stop_on=strangers: there are none; set data.strangers, or give them to from_arrays")
    if cfg.clients.join or cfg.clients.leave:
        raise FedawsError(
            "train.stop_on keeps the model of an earlier round, with rows of those who have left and none of those who "
            "have joined since; set train.stop_on=none, or leave clients.join and clients.leave out"
        )
    if last_step is not None:
        raise FedawsError(
            "train.stop_on keeps the model of an earlier round, and W is made anew after the last one; set "
            "train.stop_on=none, or train.enroll=0 and train.last_step=none"
        )


def _check_clients(cfg: Config, method: Method, data: FederatedData, warn: Warn) -> None:
    if cfg.data.drop and not isinstance(data.x, SparseRows):
        raise FedawsError(f"data.drop={cfg.data.drop:g} needs sparse examples, got dense ones; set data.drop=0")
    several = data.class_of.ndim == 2
    if not several and data.num_classes > 1:
        several = bool((data.y != data.class_of.repeat_interleave(data.num_examples)).any())
    if method.rows != "all" and method.classes_per_client > 1 and not several:
        raise FedawsError(
            f"method={cfg.method} needs clients of several classes; set data.classes_per_client=2, or give it to "
            "fedaws.from_arrays"
        )
    if method.rows != "all" and method.classes_per_client == 1 and several:
        raise FedawsError(
            f"method={cfg.method} needs clients of one class; set data.classes_per_client=1 or method=fedavg"
        )
    if method.rows == "all" and method.classes_per_client > 1 and not several:
        warn("every client has one class, so method=fedavg is method=softmax; make data with classes_per_client=2")
    if data.tested_on == "training":
        warn(
            "no test set was given: all figures are of the training examples; give one, or hold some "
            "of them out (data.validation=0.2; in Python from_arrays(…, validation=0.2))"
        )
    if not len(data.y):  # a server has no examples
        return
    alone = int((torch.bincount(data.y, minlength=data.num_classes) == 0).sum())
    if alone and "features" not in method.needs:
        one = isinstance(data.x, SparseRows) and not cfg.data.every_label
        why = " (an example counts for one of its labels; with data.every_label=true for all)" if one else ""
        warn(f"{alone:,} of {data.num_classes:,} classes have no training example{why}: no client trains their rows")
    epochs = epochs_seen(cfg, len(data.y), len(data.available))
    if epochs < 1:
        warn(
            f"this run sees {epochs:.0%} of its {len(data.y):,} training examples; raise train.rounds to about "
            f"{math.ceil(3 * cfg.train.rounds / epochs):,} for three of each, or clients.per_round"
        )


def _check_loss(method: Method, dim: int, device: torch.device) -> None:
    """A loss of one's own is asked for several clients at once, and must not mix them."""
    loss: Callable[..., Any] = method.loss
    rng = torch.Generator().manual_seed(0)
    g, w = (on_sphere(torch.randn(2, count, dim, generator=rng)).to(device) for count in (3, 1))
    with torch.random.fork_rng(devices=[]):
        together, alone = loss(g, w), [loss(g[i], w[i]) for i in (0, 1)]
    if not all(isinstance(part, Tensor) and part.shape == (3,) for part in alone):
        return  # told where it is used
    if not isinstance(together, Tensor) or together.shape != (2, 3):
        return
    if not torch.allclose(together, torch.stack(alone), rtol=1e-3, atol=1e-5, equal_nan=True):
        raise FedawsError(
            "the method's loss mixes clients, or depends on chance: for two at once, embeddings [2, 3, d], it is not "
            "that of each alone; sum over dim=-1 or -2, not over all, and use no random numbers"
        )


def _check_encoder(cfg: Config, data: FederatedData, encoder: nn.Module, warn: Warn) -> None:
    if len(data.x) > 1 and mixes_examples(encoder, as_input(data.x[:2])):
        raise FedawsError(
            "the encoder mixes the examples of a batch, which would let clients see each other; use GroupNorm or "
            "LayerNorm"
        )
    if batch_norms(encoder) and cfg.model.norm == "batch-pooled":
        warn("model.norm=batch-pooled: a client's step depends on the statistics of all of them; only for comparison")
    if batch_norms(encoder) and cfg.model.norm == "batch-local":
        warn("model.norm=batch-local: the batch statistics are of one class; test images will meet others")
    if set(encoder.state_dict()) - model_tensors(encoder).keys() - dict(encoder.named_parameters()).keys():
        warn("the encoder has buffers: they stay as they are now")
    if any(isinstance(module, _DropoutNd) for module in encoder.modules()):
        warn("the encoder has dropout: it is off, as the encoder runs in its eval mode")


def _check_spread(cfg: Config, num_classes: int, fewest: int, warn: Warn) -> None:
    spread, dim = cfg.spread, cfg.model.embedding_dim
    k = resolve_neighbors(spread, num_classes if spread.remember else fewest)
    available = fewest if spread.candidates == "all" else min(spread.candidates, fewest)
    if spread.regularizer != "moments" and k != "all" and k >= available:
        raise FedawsError(
            f"spread.neighbors={k} needs at least {k + 1} candidates, got {available}; "
            "lower spread.neighbors or raise spread.candidates"
        )
    reachable = reachable_margin(num_classes, dim)
    if spread.regularizer == "margin" and spread.margin > reachable + 1e-9:
        cure = "" if num_classes <= 2 * dim else f", or set spread.margin={math.floor(reachable * 20) / 20:g}"
        warn(
            f"spread.margin={spread.margin:g} is out of reach: {num_classes} classes in {dim} dimensions can be at "
            f"most {reachable:.3f} apart, so spreadout never reaches 0, and classes that coincide may be its best"
            + (f"; raise model.embedding_dim{cure}" if cure else "")
        )


def _check_clipping(cfg: Config, method: Method, data: FederatedData, encoder: nn.Module, warn: Warn) -> None:
    if method.rows == "all":
        raise FedawsError(
            f"method={method.name} trains all class embeddings, and privacy.clip cuts changes of θ alone; "
            "set method=fixed-spread or positive-only"
        )
    if batch_norms(encoder):
        raise FedawsError("privacy.clip needs an encoder without BatchNorm; set model.norm=group or weight")
    one_step = cfg.clients.local_steps == 1 and cfg.clients.optimizer == "sgd"
    if one_step and cfg.train.runner == "auto" and not can_ghost(encoder, as_input(data.x[:2])):
        warn("privacy.clip: the encoder has more than linear layers, so every client has a backward pass of its own")
    shared = len(data.class_of[data.available].unique()) < len(data.available)
    if cfg.privacy.noisy and shared and method.trains_own_row:
        raise FedawsError(
            f"method={method.name} averages the rows of the clients of a class without noise, and θ follows: no ε "
            "holds; give each client a class of its own, or set method=fixed-spread"
        )
    if cfg.privacy.noisy and shared:
        warn("several clients have one class: ε holds for one client, not for a person who is several of them")


def _check_images(cfg: Config, data: FederatedData, encoder: nn.Module) -> None:
    """Only images can be cropped or resized, and only some encoders take them in another size."""
    shape = data.example_shape
    sizes = dict.fromkeys(size for _, size in cfg.train.sizes)
    if len(shape) != 3 and (sizes or cfg.data.augment != "none"):
        key, none = ("train.sizes", "train.sizes=[]") if sizes else ("data.augment=crop-flip", "data.augment=none")
        raise FedawsError(f"{key} needs images [channels, height, width], got examples of shape {shape}; set {none}")
    for size in sizes:
        assert isinstance(data.x, Tensor)
        try:
            example_shape_fits(encoder, resized(as_input(data.x[:1]), size), cfg.model.embedding_dim)
        except FedawsError as error:
            raise FedawsError(
                f"train.sizes has the size {size}, but {error}; set train.sizes=[] or take an encoder for any size, "
                "such as model.name=resnet20"
            ) from None


def warn_of_collapse(method: Method, history: list[dict[str, Any]], warn: Warn) -> None:
    """Once per run, when the largest cosine first passes the line."""
    collapsed = [row.get("max_cosine", 0.0) > COLLAPSED for row in history]
    if collapsed[-1] and sum(collapsed) == 1:
        row = history[-1]
        cure = "raise spread.weight" if method.spread else "method=fedaws keeps them apart"
        warn(f"classes have collapsed: largest cosine {row['max_cosine']:.3f} in round {row['round']} ({cure})")


def check_loss(loss: float, round_num: int) -> None:
    """Stop a run that has diverged."""
    if not math.isfinite(loss):
        raise FedawsError(
            f"training diverged: the loss is {loss} in round {round_num}; lower clients.lr, server.lr or spread.weight"
        )


def check_weights(state: ServerState) -> None:
    """A last step to infinity does not show in its round's loss."""
    for name, tensor in [("W", state.W), *state.theta.items()]:
        if not bool(torch.stack(here(tensor).aminmax()).isfinite().all()):  # no copy of a table that fills the memory
            raise FedawsError(
                f"training diverged: {name} is not finite in round {state.round_num}; lower clients.lr or server.lr"
            )
