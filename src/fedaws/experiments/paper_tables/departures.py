"""In what a configuration is not the paper's, as far as the paper says what its own was.

Section 6: embeddings and rows normalised; a squared hinge at 0.9; eq. (7) with stochastic negative mining, λ = 10 and
k = 10 (Table 4 says k = 100 for AmazonCat-13K); a step λη as printed; one η. Extreme classification: 4,000 clients
drawn uniformly; SGD on the embedding lookup, Adagrad on all else, W included; layers of 1,024, 1,024 and 512 on a
lookup of 512; one label of each example. Of the images neither the optimiser nor the norm is told; Muon is younger than
the paper, and of weight standardisation and a whitened first layer it does not speak.
"""

from collections.abc import Iterator

from fedaws.config import Config
from fedaws.core.methods import method_names, method_of

THE_PAPERS = "the paper's"


def configuration(cfg: Config) -> str:
    """What of the paper a run has, and what it has besides: for FedAwS its regulariser, then all that differs.

    >>> configuration(Config(method="fixed"))
    "the paper's"
    >>> configuration(Config(spread={"regularizer": "nearest", "neighbors": 10, "center": True}))
    "eq. (7), k = 10, λ = 10; not the paper's: bounded step, centred"
    """
    own = [*_spreading(cfg), *_clients(cfg), *_optimisers(cfg), *_encoder(cfg), *_additions(cfg)]
    text = f"not {THE_PAPERS}: {', '.join(own)}" if own else THE_PAPERS
    return f"{regulariser(cfg)}; {text}" if _spreads(cfg) else text


def regulariser(cfg: Config) -> str:
    """How rows are kept apart, with k and λ or ν."""
    spread = cfg.spread
    if spread.regularizer == "moments":
        return "moments"
    k = f"k = {spread.neighbors}, " if spread.neighbors != "auto" else ""
    names = {"margin": f"eq. (6), {k}ν = {spread.margin:g}, ", "nearest": f"eq. (7), {k}"}
    return f"{names.get(spread.regularizer, spread.regularizer + ', ')}λ = {spread.weight:g}"


def _spreads(cfg: Config) -> bool:
    return cfg.method in method_names() and method_of(cfg).spread is not None


def _spreading(cfg: Config) -> Iterator[str]:
    if not _spreads(cfg):
        return
    spread = cfg.spread
    if spread.regularizer != "nearest":
        yield "regulariser"
    if spread.regularizer != "moments":
        yield from [] if spread.weight in (1, 10, 100) else ["λ"]  # those of Table 4
        yield from ["bounded step"] if spread.bounded else []
        yield from ["centred"] if spread.center else []
        yield from ["whitened"] if spread.whiten else []
        yield from ["remembered neighbours"] if spread.remember else []
        if cfg.model.name == "bag" and spread.optimizer != "adagrad":
            yield "no Adagrad on W"


def _clients(cfg: Config) -> Iterator[str]:
    cohort = 300 if cfg.data.name == "delicious" else 4000  # three classes of ten, as 4,000 of 13,330
    if cfg.model.name == "bag" and cfg.clients.per_round not in (cohort, "all"):
        yield f"{cfg.clients.per_round} clients a round"
    if cfg.clients.sampling != "uniform":
        yield "clients by their examples" if cfg.clients.sampling == "examples" else "clients by coins"
    if cfg.method in method_names() and method_of(cfg).rows != "all" and cfg.clients.margin != 0.9:
        yield f"hinge at {cfg.clients.margin:g}"
    if cfg.model.name != "bag" and cfg.method in ("fedaws", "positive-only") and cfg.class_lr != cfg.clients.lr:
        yield "another η for rows"
    if cfg.clients.sampled_classes is not None:
        yield "sampled softmax"


def _optimisers(cfg: Config) -> Iterator[str]:
    if cfg.server.optimizer == "muon":
        yield "Muon"
    if cfg.model.name != "bag":
        return
    if cfg.server.table_optimizer != "sgd":
        yield "Adagrad by rows on the lookup"
    trains_more = cfg.model.hidden or cfg.method == "softmax"  # layers, or W
    if trains_more and cfg.server.optimizer in ("sgd", "adam"):
        yield "SGD elsewhere" if cfg.server.optimizer == "sgd" else "Adam elsewhere"


def _encoder(cfg: Config) -> Iterator[str]:
    model = cfg.model
    if model.name.startswith("resnet"):
        yield from ["weight standardisation"] if model.norm == "weight" else []
        yield "whitened first layer"  # of every ResNet here, as paper too: no setting leaves it out
    if model.name == "bag" and (model.hidden, model.embedding_dim) != ((1024, 1024), 512):
        yield "other layers" if model.hidden else "the lookup alone"
    if model.residual:
        yield "residual layers"
    if not model.normalize:
        yield "not normalised"


def _additions(cfg: Config) -> Iterator[str]:
    train = cfg.train
    additions = {
        "features left out": cfg.data.drop > 0,
        "all labels in training": cfg.data.every_label,
        "rows start at means": cfg.model.start_rows == "means",
        "rows enrolled": train.enroll > 0,
        "crowding": cfg.model.crowding > 0,
        f"last step by {train.last_step}": train.last_step != "none",
        "θ averaged": cfg.server.average > 0,
        "private rows": cfg.privacy.rows == "private",
        "clipped": cfg.privacy.clip is not None,
    }
    yield from (name for name, is_so in additions.items() if is_so)
