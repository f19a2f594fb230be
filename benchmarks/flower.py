"""The same job in `fedaws train`, over Flower, and in Flower's own simulation; results in flower.md.

    python benchmarks/flower.py                        # fedaws train, and the real apps in one process: a minute
    python benchmarks/flower.py --deployment 10        # and ten nodes on loopback with TLS and keys: some minutes
    python benchmarks/flower.py --only --deployment 5  # the deployment alone
    python benchmarks/flower.py --ray ENV/bin/python   # and Flower's simulation, by the Python of an environment with
                                                       # fedaws and flwr[simulation] in it: some minutes

MLP 64-128-32, 32 examples a step, spread by moments. In one process the apps run one client after the other, through
Flower's own packing into bytes; deployed, nodes are processes that stay, or Flower's own, in which every message starts
a Python that imports torch; Ray keeps as many of these as there are cores. A round's CPU seconds are those of all
processes on the machine that belong to the deployment: what is left of its time where the machine is busy with more.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil
import torch

import fedaws
from fedaws import Config
from fedaws.files import write_text
from fedaws.flower.client_app import app as client_app
from fedaws.flower.server_app import app as server_app
from fedaws.flower.setup import Place, create
from fedaws.flower.up import Cluster, Processes, cluster, free_port
from fedaws.record.folder import RunFolder

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from inprocess_grid import InProcessGrid, Node

KINDS = (
    ("nodes that stay", False, False),
    ("nodes that stay, SQLite", False, True),
    ("SuperNodes of Flower's, SQLite", True, True),  # as it was
)
_EXAMPLE = Path(__file__).parents[1] / "examples" / "flower"


def job(clients: int, local_steps: int, rounds: int) -> Config:
    settings = [f"data.classes={clients}", "data.name=synthetic", "data.features=64", f"train.rounds={rounds}"]
    settings += [f"clients.local_steps={local_steps}", f"train.evaluate_every={rounds}", "train.checkpoint_every=1000"]
    return fedaws.config.load("digits-flower").override(settings)


def simulated(cfg: Config) -> float:
    """Seconds a round in `fedaws train`; the first one, which warms up, is left out."""
    times: list[float] = []
    fedaws.train(config=cfg, reporter=fedaws.Reporter(on_round=lambda *_: times.append(time.perf_counter())))
    return (times[-1] - times[0]) / (len(times) - 1)


def in_process(cfg: Config, clients: int) -> float:
    """Seconds a round through the real apps, one client after the other."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(cfg.to_toml())
        nodes = {i + 2: Node(config={"partition-id": i}) for i in range(clients)}
        settings = {"config": str(path), "trust-claims": True, "folder": str(Path(folder) / "run")}
        started = time.perf_counter()
        InProcessGrid(client_app, nodes, settings).serve(server_app)
        return (time.perf_counter() - started) / cfg.train.rounds


def deployed(nodes: int, rounds: int, supernodes: bool, database: bool) -> dict[str, float]:
    """Seconds of a round on loopback, by part, and bytes a node and round; nodes of ours or of Flower's."""
    with tempfile.TemporaryDirectory() as folder:
        cfg = fedaws.config.load("digits-flower").override([f"train.rounds={rounds}"])
        place = create(Path(folder) / "federation", cfg, nodes)
        with cluster(place.root, print) as found:
            if database:
                found.database = place.root / "state.db"
            found.start(Supernodes(found).start if supernodes else None)
            run_id = found.submit(deadline=600.0, grace=600.0, wait=1800.0)
            after_first = _wait_for_round(place, 1, found)
            found.follow(run_id)
            cpu = (_cpu_seconds(found.processes) - after_first) / (rounds - 1)
            sent, received = found.traffic(run_id)
        rows = RunFolder(place.run).metrics()[1:]  # the first round also waits for the nodes to start
    keys = {"round": "round", "process start": "import", "compute": "compute", "server step": "server"}
    parts = {name: median(row[f"{key}_seconds"] for row in rows) for name, key in keys.items()}
    parts["transport and waiting"] = parts["round"] - sum(parts[name] for name in list(keys)[1:])
    parts["CPU, all processes"] = cpu
    per = nodes * rounds
    plain = simulated(cfg)
    return parts | {"fedaws train": plain, "bytes to a node": sent / per, "bytes from a node": received / per}


class Supernodes:
    """Nodes by Flower's own program, which starts a Python for each message."""

    def __init__(self, running: Cluster) -> None:
        self.running, self._ports = running, {running.port}

    def start(self, name: str) -> None:
        while (port := free_port()) in self._ports:  # of theirs too, which they take only seconds later
            pass
        self._ports.add(port)
        running, folder = self.running, self.running.place.node(name)
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{running.port}"]
        command += ["--root-certificates", str(folder / "ca.crt"), "--host", "127.0.0.1", "--port", str(port)]
        command += ["--auth-supernode-private-key", str(folder / "key")]
        config = f'class-id={running.class_of[name]} data="{folder / "data.npz"}"'
        running.processes.start(name, [*command, "--node-config", config], folder / "flwr")


def _wait_for_round(place: Place, number: int, running: Cluster) -> float:
    """CPU seconds of all processes once a round is done; the first one also starts everything."""
    while len(RunFolder(place.run).checkpoints()) < number:
        if not running.processes.alive("superlink"):
            raise SystemExit("the SuperLink has ended")
        time.sleep(0.1)
    return _cpu_seconds(running.processes)


def _cpu_seconds(processes: Processes) -> float:
    """Of what runs, and of what has run: a process's children count once it has waited for them."""
    total = 0.0
    for process in processes.strays():
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def in_ray(cfg: Config, clients: int, python: Path) -> float:
    """Seconds a round in Flower's simulation; the first ones, in which its processes start, are left out."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        shutil.copytree(_EXAMPLE, place.app)
        cfg_path = place.root / "config.toml"
        cfg_path.write_text(cfg.override(["train.evaluate_every=1"]).to_toml())
        processes, port = Processes(place, python), free_port()
        connection = f'[superlink]\ndefault = "sim"\n[superlink.sim]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        write_text(place.home / "config.toml", connection)
        settings = f'config="{cfg_path}" folder="{place.run}" deadline=600.0'
        federation = f"num-supernodes={clients} client-resources-num-cpus=1"
        run = [
            processes.program("flwr"),
            "run",
            str(place.app),
            "sim",
            "-c",
            settings,
            "--federation-config",
            federation,
        ]
        try:
            # As `flwr run . local` does, which gives up on a SuperLink that takes more than 15 seconds to start.
            link = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
            processes.start("superlink", link, place.home)
            environment = processes.environment(place.home)
            while subprocess.run(run, env=environment, capture_output=True, check=False).returncode:
                time.sleep(2)
            while not RunFolder(place.run).finished:
                time.sleep(5)
                told = [processes.program("flwr"), "list", "sim", "--format", "json"]
                found = subprocess.run(told, env=environment, capture_output=True, text=True, check=False).stdout
                if "finished:failed" in found:
                    raise SystemExit(f"Flower's simulation failed: {json.loads(found)['runs'][0]['status-details']}")
            rows = RunFolder(place.run).metrics()
        finally:
            processes.stop()
    return median(row["round_seconds"] for row in rows[2:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--deployment", type=int, default=0, metavar="NODES")
    parser.add_argument("--only", action="store_true", help="the deployment alone")
    parser.add_argument("--rounds", type=int, default=6, help="of the deployment and of Ray")
    parser.add_argument("--ray", type=Path, metavar="PYTHON", help="of an environment with fedaws and flwr[simulation]")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"load {os.getloadavg()[0]:.2f}, torch {torch.__version__}")
    figures: dict[str, dict[str, float]] = {}
    for clients, local_steps in () if options.only else ((10, 1), (10, 10), (100, 1), (100, 10)):
        name, rounds = f"{clients} clients, {local_steps} local steps", 2000 // clients // local_steps + 10
        figures[name] = found = {
            "fedaws train": clients / min(simulated(job(clients, local_steps, rounds)) for _ in "123")
        }
        found["apps in one process"] = clients / in_process(job(clients, local_steps, 3), clients)
        if options.ray:
            found["Ray"] = clients / in_ray(job(clients, local_steps, options.rounds), clients, options.ray.absolute())
            found["fedaws train / Ray"] = found["fedaws train"] / found["Ray"]
        print(f"{name}, client updates/s: " + ", ".join(f"{key} {value:,.0f}" for key, value in found.items()))
    for name, supernodes, database in KINDS if options.deployment else ():
        title = f"deployment, {options.deployment} {name}"
        found = figures[title] = deployed(options.deployment, options.rounds, supernodes, database)
        print(f"{title}: " + ", ".join(f"{key} {value:,.3g}" for key, value in found.items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
