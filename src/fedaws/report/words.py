"""What was run, in words and tables: results in a sentence, settings, the command to have it again."""

import math
import shlex

from fedaws import config as configuration
from fedaws.config import Config
from fedaws.record.journal import differences
from fedaws.report.charts import shown
from fedaws.report.collect import Group, RunData, setting
from fedaws.report.figures import Table, duration, num_classes, plus_minus, statistics

_SHORT = {
    "error": "error", "error_bound": "≤ 2ε/ρ", "error_bound_cosine": "≤ cosine form", "lemma1_bound": "≤ Lemma 1",
    "min_separation": "ρ", "positive_radius": "ε", "theorem1_gap": "Theorem 1 gap", "theorem1_bound": "≤ bound",
}  # fmt: skip


def title(groups: list[Group]) -> str:
    """The names of the experiments."""
    names = list(dict.fromkeys(group.config.name for group in groups))
    return ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")


def subtitle(groups: list[Group]) -> str:
    """What is on the page, in one line."""
    run, runs = groups[0].shown, [run for group in groups for run in group.runs]
    methods, seeds = len({run.config.method for run in runs}), len({run.config.seed for run in runs})
    rounds = max(run.config.train.rounds for run in runs)
    kinds = (
        _counted(methods, "method") if methods == len(groups) else _counted(len(groups), "kind of run", "kinds of runs")
    )
    parts = [f"{classes:,} classes" for classes in [num_classes(run)] if classes]
    parts += [_counted(rounds, "round"), kinds, _counted(seeds, "seed")]
    return " · ".join(part.replace(" ", "\u00a0") for part in parts)


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def lead(groups: list[Group]) -> list[str]:
    """The point in words: how often the method that matters is right, beside the others; how close classes are."""
    told = [group for group in groups if statistics(group, "precision@1")]
    if not told:
        return []
    own = [group for group in told if group.config.method == "fedaws"]
    told.sort(key=lambda group: -_precision(group)[0])
    hero = own[0] if len(own) == 1 else told[0]
    others = [group for group in told if group is not hero]
    if len(own) != 1 and others:
        best = f"Of {len(told)} kinds of runs {hero.label} is right most often,"
        worst = f"; {others[-1].label} least, about {plus_minus(others[-1], 'precision@1', 'percent')}"
        words = [f"{best} about {plus_minus(hero, 'precision@1', 'percent')} of the test examples{worst}."]
    else:
        beside = f": {_beside(hero, others)}" if others else ""
        words = [
            f"{hero.label} is right about {plus_minus(hero, 'precision@1', 'percent')} of the test examples{beside}."
        ]
    return [_unbroken(line) for line in words + _closeness(told)]


def _unbroken(text: str) -> str:
    """No line ends within a figure."""
    return text.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")


def _precision(group: Group) -> tuple[float, float]:
    return statistics(group, "precision@1") or (0.0, 0.0)


def _beside(hero: Group, others: list[Group]) -> str:
    """Points above and below; of many others only the best and the worst."""
    if len(others) > 4:
        others = [others[0], others[-1]]
    level, apart = list[str](), list[str]()
    for group in others:
        (ours, our_spread), (theirs, their_spread) = _precision(hero), _precision(group)
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
    by_cosine = sorted((found[0], group.label) for group in groups if (found := statistics(group, "max_cosine")))
    ends = by_cosine[-1:] + by_cosine[:1] * (len(by_cosine) > 1)
    words = [f"of {label} {_stand(cosine)} (cosine {shown(round(cosine, 2))})" for cosine, label in ends]
    return [f"The two closest classes {', those '.join(words)}."] if words else []


def _stand(cosine: float) -> str:
    if cosine > 0.95:
        return "have fallen together"
    return "nearly coincide" if cosine > 0.8 else ("stand apart" if cosine > 0.25 else "stand far apart")


def _given(run: RunData) -> str:
    """Who else had the data, if no configuration did."""
    if not run.facts or not run.facts.own_data:
        return ""
    return " (held by the nodes)" if run.attendance else " (given in Python)"


def facts(groups: list[Group]) -> list[tuple[str, str]]:
    """What all runs are about."""
    run = groups[0].shown
    cfg, details, classes = run.config, run.details, num_classes(run)
    data = dict.fromkeys(setting(g.config, "data.name") for g in groups)
    facts = [("Data", ", ".join(data) + _given(run))]
    if classes:
        facts.append(("Classes", f"{classes:,}, each known to its own clients only"))
        clients, cohort = classes * cfg.data.clients_per_class, cfg.clients.per_round
        per_round = "all" if cohort == "all" or cohort >= clients else f"{cohort:,}"
        facts.append(("Clients", f"{clients:,}, of whom {per_round} take part in a round"))
    if run.facts:
        shape = " × ".join(map(str, run.facts.example_shape))
        facts.append(("Examples", f"{shape} {run.facts.example_dtype}"))
    if details:
        what = "held-out training examples" if cfg.data.validation else "examples"
        facts.append(("Tested on", f"{details.test_examples:,} {what}"))
    per_step = cfg.clients.examples_per_step
    examples = "all examples" if per_step == "all" else _counted(per_step, "example")
    facts.append(("A client's round", f"{_counted(cfg.clients.local_steps, 'step')} on {examples}"))
    facts.append(
        ("Encoder", f"{cfg.model.name}, {cfg.model.embedding_dim} dimensions, {run.theta_numbers:,} parameters")
    )
    made = {k: ", ".join(dict.fromkeys(r.made_with[k] for g in groups for r in g.runs if k in r.made_with))
            for k in dict.fromkeys(k for g in groups for r in g.runs for k in r.made_with)}  # fmt: skip
    machine = made.pop("machine", "")
    if made:
        facts.append(("Made with", ", ".join(f"{k} {v}" for k, v in made.items())))
    if machine:
        facts.append(("Machine", machine))
    return facts


def settings(groups: list[Group]) -> list[Table]:
    """Between the runs, and from the defaults."""
    default, configs = Config(), [group.config for group in groups]
    varying = dict.fromkeys(key for cfg in configs for key, _, _ in differences(configs[0], cfg) if key != "seed")
    hidden = {"data.root", "seed", "method", "name"}  # where data lies is nobody's business; the others are said above
    tables = []
    between = [key for key in varying if key not in hidden]
    if between:
        rows = [[key, *(setting(cfg, key) for cfg in [default, *configs])] for key in between]
        tables.append(
            Table("Settings in which the runs differ", ["setting", "default", *(g.label for g in groups)], rows)
        )
    same = [key for key, _, _ in differences(configs[0], default) if key not in hidden | varying.keys()]
    if same:
        rows = [[key, setting(default, key), setting(configs[0], key)] for key in same]
        title = "Settings that differ from the defaults" + (", the same in all runs" if len(groups) > 1 else "")
        tables.append(Table(title, ["setting", "default", "here"], rows))
    return tables


def commands(groups: list[Group]) -> list[str]:
    """What is typed to have these runs again: one comparison if they are one, else run by run."""
    runs = [run for group in groups for run in group.runs]
    if any(run.facts and (run.facts.own_data or run.facts.own_encoder) for run in runs):
        return []
    seeds = sorted({run.config.seed for run in runs})
    methods = list(dict.fromkeys(run.config.method for run in runs))
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
    settings = [
        f"{key}={'DIR' if key == 'data.root' else setting(cfg, key)}"
        for key, _, _ in differences(cfg, usual)
        if key not in left_out
    ]
    settings += [f"seed={seed}"] * (seed != usual.seed)
    return [cfg.name, *(word for setting in settings for word in ("-s", setting))]


def runs_table(runs: list[RunData]) -> Table:
    """Folder by folder."""
    rows = []
    for run in runs:
        precision = run.last.get("precision@1")
        rows.append(
            [
                run.name,
                run.config.method,
                run.config.seed,
                f"{run.rounds_done:,} of {run.config.train.rounds:,}",
                "finished" if run.finished else "unfinished",
                "–" if precision is None else shown(precision, "percent"),
                duration(run.last["seconds"]) if "seconds" in run.last else "–",
            ]
        )
    head = ["folder", "method", "seed", "rounds", "", "precision@1", "time"]
    return Table("The runs", head, rows)


def theory_table(groups: list[Group]) -> Table | None:
    """Bounds and what they bound, at the end."""
    keys = [key for key in _SHORT if any(statistics(g, key) for g in groups)]
    if len(keys) < 2:
        return None
    percents = {"error", "error_bound", "error_bound_cosine", "lemma1_bound"}
    rows = [
        [g.label, *(plus_minus(g, key, "percent" if key in percents else "number") for key in keys)] for g in groups
    ]
    return Table("The theory at the end", ["method", *(_SHORT[key] for key in keys)], rows)
