"""What was run, in words and tables: results in a sentence, settings, the command to have it again."""

import math
import shlex
from pathlib import Path

from fedaws import config as configuration
from fedaws.config import FOLDERS, Config
from fedaws.evaluate.catalogue import duration, format_value, measure_of
from fedaws.record.journal import differences
from fedaws.report.collect import Group, setting
from fedaws.report.figures import Table, num_classes, percent, plus_minus, statistics
from fedaws.report.run_data import RunData

_BOUNDS = ("error", "error_bound", "error_bound_cosine", "lemma1_bound", "min_separation", "positive_radius",
           "theorem1_gap", "theorem1_bound")  # fmt: skip
EXAMPLES = {"test": "test examples", "held-out": "held-out training examples", "training": "training examples"}
"""What runs are tested on, as a noun."""
_OF_EXAMPLES = {
    "test": "the test examples",
    "held-out": "the held-out training examples (the test set was not used)",
    "training": "its own training examples (no test set was given)",
}


def title(groups: list[Group]) -> str:
    """The names of the experiments."""
    names = list(dict.fromkeys(_experiment(group.shown) for group in groups))
    return ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")


def _experiment(run: RunData) -> str:
    """The run's name, unless it is that of a preset on whose data it was not trained."""
    cfg = run.config
    if cfg.name not in configuration.presets():
        return cfg.name
    if run.own_data:
        return _data(run).capitalize()
    same_data = configuration.load(cfg.name).data.name == cfg.data.name
    return cfg.name if same_data else setting(cfg, "data.name")


def _data(run: RunData) -> str:
    """What a run was trained on."""
    if run.own_data:
        return "data of your own"
    if run.fact("own_data"):
        return "held by the nodes"
    name, root = setting(run.config, "data.name"), run.config.data.root
    return f"{Path(root).name}, a folder of your own ({name})" if root and name in FOLDERS else name


def _encoder(run: RunData) -> str:
    name: str = run.config.model.name
    if run.fact("own_encoder"):
        kind = run.fact("encoder_name")
        name = f"encoder of your own ({kind})" if kind else "encoder of your own"
    return f"{name}, {run.config.model.embedding_dim} dimensions, {run.theta_numbers:,} parameters"


def examples_of(groups: list[Group]) -> str:
    """What the figures of a page are of."""
    kinds = {group.shown.tested_on for group in groups}
    if len(kinds) > 1:
        return "the examples that each run was tested on"
    kind = kinds.pop()
    return EXAMPLES["test"] if kind == "test" else _OF_EXAMPLES[kind]


def subtitle(groups: list[Group]) -> str:
    """What is on the page, in one line."""
    runs = [run for group in groups for run in group.runs]
    methods = len({(run.method, run.role) for run in runs})
    kinds = _counted(len(groups), "kind of run", "kinds of runs")
    classes = num_classes(groups[0].shown)
    parts = [f"{classes:,} classes"] if classes else []
    parts.append(_counted(max(run.config.train.rounds for run in runs), "round"))
    parts.append(_counted(methods, "method") if methods == len(groups) else kinds)
    parts.append(_counted(len({run.config.seed for run in runs}), "seed"))
    return " · ".join(part.replace(" ", "\u00a0") for part in parts)


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def lead(groups: list[Group]) -> list[str]:
    """The point in words: how often the method that matters is right, beside the others; how close classes are."""
    measured = [group for group in groups if statistics(group, "precision@1")]
    if not measured:
        return []
    measured.sort(key=lambda group: -_precision(group)[0])
    ours = [group for group in measured if group.shown.method == "fedaws"]
    hero = ours[0] if len(ours) == 1 else measured[0]
    others = [group for group in measured if group is not hero]
    right = f"about {plus_minus(hero, 'precision@1')} of {_OF_EXAMPLES[hero.shown.tested_on]}"
    if len(ours) != 1 and others:
        worst = f"{others[-1].label} least, about {plus_minus(others[-1], 'precision@1')}"
        answer = f"Of {len(measured)} kinds of runs {hero.label} is right most often, {right}; {worst}."
    else:
        beside = f": {_beside(hero, others)}" if others else ""
        answer = f"{hero.label} is right {right}{beside}."
    return [_unbroken(line) for line in [answer, *_closeness(measured)]]


def _unbroken(text: str) -> str:
    """No line ends within a figure."""
    return text.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")


def _precision(group: Group) -> tuple[float, float]:
    return statistics(group, "precision@1") or (0.0, 0.0)


def _beside(hero: Group, others: list[Group]) -> str:
    """Points above and below; of many others only the best and the worst."""
    if len(others) > 4:
        others = [others[0], others[-1]]
    ours, our_spread = _precision(hero)
    level: list[str] = []
    apart: list[str] = []
    for group in others:
        theirs, their_spread = _precision(group)
        points = 100 * (ours - theirs)
        several = len(hero.runs) > 1 and len(group.runs) > 1
        if several and abs(points) <= 100 * math.hypot(our_spread, their_spread):
            level.append(group.label)
        else:
            apart.append(f"{abs(points):.1f} points {'above' if points >= 0 else 'below'} {group.label}")
    alike = [f"level with {' and '.join(level)} within the spread of the seeds"] if level else []
    return ", ".join([*apart, *alike])


def _closeness(groups: list[Group]) -> list[str]:
    """Of the runs whose two closest classes are nearest to each other, and of those whose are farthest apart."""
    by_cosine = sorted((mean[0], group.label) for group in groups if (mean := statistics(group, "max_cosine")))
    ends = [by_cosine[-1], by_cosine[0]] if len(by_cosine) > 1 else by_cosine
    words = [f"of {label} {_stand(cosine)} (cosine {format_value(round(cosine, 2))})" for cosine, label in ends]
    return [f"The two closest classes {', those '.join(words)}."] if words else []


def _stand(cosine: float) -> str:
    if cosine > 0.95:
        return "have fallen together"
    return "nearly coincide" if cosine > 0.8 else ("stand apart" if cosine > 0.25 else "stand far apart")


def _promise(group: Group) -> str | None:
    """What a private run's ε is of, and what it is not of."""
    privacy = group.shown.fact("privacy")
    if privacy is None:
        return None
    rows = {
        "none": "θ only (class embeddings: none)",
        "nothing released": "θ only (no class embedding is released)",
        "joint": "θ and the means of class embeddings (each of which is its owner's alone)",
    }[privacy.rows]
    cost = f"ε = {privacy.epsilon:.2f} at δ = {privacy.delta:.1e} after {privacy.releases:,} releases"
    known = privacy.epsilon_if_known
    amplified = known is not None and known != privacy.epsilon
    against = f", {known:.2f} for whoever knows who took part in which round" if amplified else ""
    return f"{group.label}: user-level {cost}{against}; it covers {rows}"


def facts(groups: list[Group]) -> list[tuple[str, str]]:
    """What all runs are about."""
    run = groups[0].shown
    cfg = run.config
    classes = num_classes(run)
    data = ", ".join(dict.fromkeys(_data(group.shown) for group in groups))
    facts = [("Data", f"{data}, {classes:,} classes" if run.own_data and classes else data)]
    if classes:
        facts.append(("Classes", f"{classes:,}, each known to its own clients only"))
        clients = classes * cfg.data.clients_per_class
        cohort = cfg.clients.per_round
        per_round = "all" if cohort == "all" or cohort >= clients else f"{cohort:,}"
        facts.append(("Clients", f"{clients:,}, of whom {per_round} take part in a round"))
    if run.facts:
        shape = " × ".join(map(str, run.facts.example_shape))
        facts.append(("Examples", f"{shape} {run.facts.example_dtype}"))
    if run.details:
        what = EXAMPLES | {"test": "examples", "training": f"of {_OF_EXAMPLES['training']}"}
        facts.append(("Tested on", f"{run.details.test_examples:,} {what[run.tested_on]}"))
    per_step = cfg.clients.examples_per_step
    examples = "all examples" if per_step == "all" else _counted(per_step, "example")
    facts.append(("A client's round", f"{_counted(cfg.clients.local_steps, 'step')} on {examples}"))
    facts += [("Privacy", promise) for promise in dict.fromkeys(filter(None, map(_promise, groups)))]
    facts.append(("Encoder", "; ".join(dict.fromkeys(_encoder(group.shown) for group in groups))))
    made: dict[str, dict[str, None]] = {}
    for name, version in ((k, v) for group in groups for run in group.runs for k, v in run.made_with.items()):
        made.setdefault(name, {})[version] = None
    machine = made.pop("machine", None)
    if made:
        facts.append(("Made with", ", ".join(f"{name} {', '.join(versions)}" for name, versions in made.items())))
    if machine:
        facts.append(("Machine", ", ".join(machine)))
    return facts


def settings(groups: list[Group]) -> list[Table]:
    """Between the runs, and from the defaults."""
    default = Config()
    configs = [group.config for group in groups]
    varying = dict.fromkeys(key for cfg in configs for key, _, _ in differences(configs[0], cfg) if key != "seed")
    hidden = {"data.root", "seed", "method", "name"}  # where data lies is nobody's business; the others are said above
    hidden |= {key for key in ("data.name", "model.name") if any(setting(cfg, key) == "own" for cfg in configs)}
    tables = []
    between = [key for key in varying if key not in hidden]
    if between:
        rows = [[key, *(setting(cfg, key) for cfg in [default, *configs])] for key in between]
        head = ["setting", "default", *(group.label for group in groups)]
        tables.append(Table("Settings in which the runs differ", head, rows))
    hidden |= varying.keys()
    same = [key for key, here, _ in differences(configs[0], default) if key not in hidden and here != "own"]
    if same:
        rows = [[key, setting(default, key), setting(configs[0], key)] for key in same]
        title = "Settings that differ from the defaults" + (", the same in all runs" if len(groups) > 1 else "")
        tables.append(Table(title, ["setting", "default", "here"], rows))
    return tables


def commands(groups: list[Group]) -> list[str]:
    """What is typed to have these runs again: one comparison if they are one, else run by run."""
    runs = [run for group in groups for run in group.runs]
    if any(run.own_method or run.fact("own_data") or run.fact("own_encoder") for run in runs):
        return []
    seeds = sorted({run.config.seed for run in runs})
    methods = list(dict.fromkeys(run.method for run in runs))
    alike = {r.config.model_copy(update={"seed": 0, "method": "fedaws"}).model_dump_json() for r in runs}
    whole = len(runs) == len(methods) * len(seeds) and seeds == list(range(seeds[0], seeds[0] + len(seeds)))
    if len(alike) == 1 and whole and len(runs) > 1:
        words = ["compare", *_words(runs[0], {"method", "seed"}, seeds[0]), "--methods", ",".join(methods)]
        return [shlex.join(["fedaws", *words, *(["--seeds", str(len(seeds))] if len(seeds) > 1 else [])])]
    return [shlex.join(["fedaws", "train", *_words(run, {"seed"}, run.config.seed)]) for run in runs[:12]]


def _words(run: RunData, left_out: set[str], seed: int) -> list[str]:
    """The preset and what differs from it; without a preset the run's own configuration file."""
    cfg = run.config
    if cfg.name not in configuration.presets():
        return [f"{run.name}/config.toml"]
    usual = configuration.load(cfg.name)
    keys = [key for key, _, _ in differences(cfg, usual) if key not in left_out]
    settings = [f"{key}={'DIR' if key == 'data.root' else setting(cfg, key)}" for key in keys]
    if seed != usual.seed:
        settings.append(f"seed={seed}")
    return [cfg.name, *(word for setting in settings for word in ("-s", setting))]


def runs_table(runs: list[RunData]) -> Table:
    """Folder by folder."""
    rows = []
    for run in runs:
        rounds = f"{run.rounds_done:,} of {run.config.train.rounds:,}"
        end = "finished" if run.finished else "unfinished"
        precision = percent(run.last.get("precision@1"))
        time = duration(run.last["seconds"]) if "seconds" in run.last else "–"
        rows.append([run.name, run.method, run.config.seed, rounds, end, precision, time])
    return Table("The runs", ["folder", "method", "seed", "rounds", "", "precision@1", "training"], rows)


def theory_table(groups: list[Group]) -> Table | None:
    """Bounds and what they bound, at the end."""
    keys = [key for key in _BOUNDS if any(statistics(group, key) for group in groups)]
    if len(keys) < 2:
        return None
    rows = [[group.label, *(plus_minus(group, key) for key in keys)] for group in groups]
    return Table("The theory at the end", ["method", *(measure_of(key).short for key in keys)], rows)
