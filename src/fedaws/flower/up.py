"""A federation of several processes on this machine: SuperLink and nodes on loopback, with TLS and keys."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from fedaws import config as configuration
from fedaws.errors import FedawsError
from fedaws.files import only_writer, write_text
from fedaws.flower.federation import Member, read_federation
from fedaws.flower.settings import SERVER_LOG
from fedaws.flower.setup import CONNECTION, Place
from fedaws.flower.wire import printable
from fedaws.record.folder import RunFolder

_HOST = "127.0.0.1"
_MARK = "FEDAWS_FLOWER_UP"  # in the environment of all that we start, by which strays are known
_ENDED = ("finished:completed", "finished:failed", "finished:stopped")

_IN_MEMORY = ":flwr-in-memory:"  # Flower's word for a SuperLink that writes nothing down, at a third of the cost

_PATIENCE = 5  # questions without an answer
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, a service manager, a terminal that is closed

Say = Callable[[str], None]


class Processes:
    """What was started here, and is stopped here, with all its children."""

    def __init__(self, place: Place, python: Path = Path(sys.executable)) -> None:
        self.place = place
        self.python = python
        self._running: dict[str, psutil.Popen] = {}

    def start(self, name: str, command: list[str], home: Path) -> None:
        """Start a program with a log of its own, as the head of a process group."""
        self.place.logs.mkdir(parents=True, exist_ok=True)
        with (self.place.logs / f"{name}.log").open("ab") as log:
            self._running[name] = psutil.Popen(
                [self.program(command[0]), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(home),
                start_new_session=True,
            )

    def environment(self, home: Path) -> dict[str, str]:
        """Flower quiet, on settings of our own, and known to be ours."""
        ours = {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PATH": f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # many processes share these cores
            _MARK: str(self.place.root),
        }
        return os.environ | ours

    def program(self, name: str) -> str:
        """Flower's programs stand beside their Python."""
        path = self.python.with_name(name)
        if not path.exists():
            raise FedawsError(f"no program {name}; install it: pip install 'fedaws[flower]'")
        return str(path)

    def flwr(self, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Flower's command line, in the federation's folder and with these settings of Flower's."""
        command = [self.program("flwr"), *arguments]
        try:
            return subprocess.run(
                command,
                cwd=self.place.root,
                env=self.environment(home),
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise FedawsError(f"`flwr {arguments[0]}` did not answer within four minutes") from None

    def alive(self, name: str) -> bool:
        """Whether a program is still running."""
        return name in self._running and self._running[name].poll() is None

    def kill(self, name: str) -> None:
        """End a program and its children at once, as a power cut would."""
        process = self._running.pop(name)
        with suppress(psutil.NoSuchProcess):
            _kill([process, *process.children(recursive=True)])
        process.wait()

    def stop(self) -> None:
        """End everything: politely, then not."""
        alive = [process for process in self._running.values() if process.poll() is None]
        for process in alive:
            process.terminate()
        psutil.wait_procs(alive, timeout=5)
        for process in alive:
            with suppress(ProcessLookupError, PermissionError):  # it is the head of a group of its own
                os.killpg(process.pid, signal.SIGKILL)
        self.end_strays()
        psutil.wait_procs(alive)
        self._running.clear()

    def end_strays(self) -> None:
        """Again and again, as one of them may start another while they are being counted."""
        for _ in range(20):
            if not (strays := self.strays()):
                return
            _kill(strays)
            time.sleep(0.1)

    def strays(self) -> list[psutil.Process]:
        """Whatever still carries our mark: Flower detaches some of its processes."""
        others = (process for process in psutil.process_iter(["environ"]) if process.pid != os.getpid())
        mark = {_MARK: str(self.place.root)}.items()
        return [process for process in others if mark <= (process.info["environ"] or {}).items()]


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


class Cluster:
    """A SuperLink and its nodes, by the files in a federation's folder."""

    def __init__(self, place: Place, say: Say) -> None:
        self.place, self.processes, self._say = place, Processes(place), say
        self.members = read_federation(place.federation).active
        self.class_of = {member.name: member.class_id for member in self.members}
        self.database: str | Path = _IN_MEMORY
        self.port, self._home = free_port(), place.logs / "flwr"  # not the operator's, which name the real server

    def start(self, start_node: Callable[[str], None] | None = None) -> None:
        """Start everything; each node by its name, as `fedaws flower node` unless told otherwise."""
        self._say(f"SuperLink on {_HOST}:{self.port} …")
        self.start_superlink()
        _register(self.members, self.flwr)
        for member in self.members:
            (start_node or self.start_node)(member.name)
        self._say(f"{len(self.members)} nodes started; logs are in {self.place.logs}")

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it answers.

        It knows of no earlier run, unless it has a database: one that waits there would be run too.
        """
        self.place.connect(self._home, f"{_HOST}:{self.port}", str(self.place.authority))
        command = self._fedaws("superlink", self.place.root, "--host", _HOST, "--port", self.port)
        command += ["--database", str(self.database)]
        self.processes.start("superlink", command, self.place.server / "flwr")
        end = time.monotonic() + 600
        while not _answers(self.port):
            if not self.processes.alive("superlink") or time.monotonic() > end:
                raise FedawsError(f"superlink did not start; see {self.place.logs / 'superlink.log'}")
            time.sleep(0.2)

    def start_node(
        self, name: str, *, key: Path | None = None, class_id: int | None = None, process: str | None = None
    ) -> None:
        """Start a node as its own machine would, with nothing but its own folder."""
        folder, address = self.place.node(name), f"{_HOST}:{self.port}"
        class_id = self.class_of[name] if class_id is None else class_id
        command = self._fedaws("node", folder, "--superlink", address, "--class-id", class_id)
        command += ["--key", str(key or folder / "key")]
        self.processes.start(process or name, command, folder / "flwr")

    def _fedaws(self, *arguments: object) -> list[str]:
        return [self.processes.python.name, "-m", "fedaws", "flower", *map(str, arguments)]

    def submit(self, **overrides: str | float) -> str:
        """Start a run of the app with these of its settings changed; gives its id."""
        place = self.place  # perhaps not where the app was written
        paths = {"config": place.server / "config.toml", "federation": place.federation, "folder": place.run}
        settings = {name: str(path) for name, path in paths.items()} | overrides
        told = " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in settings.items())
        done = self.flwr("run", str(place.app), CONNECTION, "--format", "json", "--run-config", told)
        answer: dict[str, Any] = {}
        with suppress(ValueError):
            answer = json.loads(done.stdout)
        if "run-id" not in answer:
            why = str(answer.get("error-message", "")).strip().rpartition("\n")[2] or _last_line(done)
            raise FedawsError(f"the run was not started: {why}; see {self.place.logs}")
        return str(answer["run-id"])

    def status(self, run_id: str) -> str:
        """Where a run is; `flwr run` itself reports success also of a run that failed."""
        return str(self._told(run_id).get("status", "unknown"))

    def traffic(self, run_id: str) -> tuple[int, int]:
        """Bytes that the nodes of a run were sent, and that they sent, as the SuperLink counts them."""
        found = self._told(run_id).get("network-traffic", {})
        return int(found.get("outbound-bytes", 0)), int(found.get("inbound-bytes", 0))

    def _told(self, run_id: str) -> dict[str, Any]:
        done = self.flwr("list", CONNECTION, "--run-id", run_id, "--format", "json")
        with suppress(ValueError, KeyError, IndexError, TypeError):
            return dict(json.loads(done.stdout)["runs"][0])
        return {}

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Flower's command line."""
        return self.processes.flwr(self._home, *arguments)

    def follow(self, run_id: str) -> None:
        """Tell of the rounds as they are done, until the run ends."""
        told, asked, unknown = _Told(self.place, self._say), time.monotonic(), 0
        living = set(self.class_of)
        while True:
            for name in sorted(name for name in living if not self.processes.alive(name)):
                living.remove(name)
                self._say(f"{name} has ended; see {self.place.logs / name}.log")
            if told.news():
                asked = time.monotonic()
            if not self.processes.alive("superlink"):
                raise FedawsError(f"the SuperLink is gone; see {self.place.logs / 'superlink.log'}, then start again")
            # Asking costs the start of a Python: only when nothing has happened for long.
            if time.monotonic() - asked > 20 or RunFolder(self.place.run).finished:
                status, asked = self.status(run_id), time.monotonic()
                if status == "finished:completed":
                    told.news()
                    return
                if status in _ENDED:
                    raise FedawsError(f"the run ended as {status}: {self._why(run_id)}")
                unknown = unknown + 1 if status == "unknown" else 0
                if unknown == _PATIENCE:
                    raise FedawsError(f"the SuperLink does not tell how run {run_id} is; see {self.place.logs}")
            time.sleep(0.5)

    def _why(self, run_id: str) -> str:
        """The last error that the run's own log has."""
        done = self.flwr("log", run_id, CONNECTION, "--show")
        lines = [line.strip() for line in done.stdout.splitlines() if "Error" in line]
        return printable(lines[-1]) if lines else f"see `flwr log {run_id}`"


@contextmanager
def cluster(root: Path, say: Say) -> Iterator[Cluster]:
    """The processes of a federation; whatever happens inside, none of them is left."""
    found = Cluster(Place(root.expanduser().absolute()), say)
    with only_writer(found.place.root):  # two would fight over the SuperLink's database
        found.processes.end_strays()  # of one that was itself killed
        heeded = [number for number in _ENDS if signal.getsignal(number) != signal.SIG_IGN]  # not SIGHUP under nohup
        old = {number: signal.signal(number, signal.default_int_handler) for number in heeded}
        try:  # whatever ends it, `finally` is reached
            yield found
        finally:
            for number in heeded:
                signal.signal(number, signal.SIG_IGN)
            found.processes.stop()
            for number, handler in old.items():
                signal.signal(number, handler)


def register(root: Path) -> list[Member]:
    """Enter all nodes of federation.toml at the SuperLink that flwr/config.toml names; gives them."""
    place = Place(root.expanduser().absolute())
    members = read_federation(place.federation).active
    _register(members, lambda *arguments: Processes(place).flwr(place.home, *arguments))
    return list(members)


def _register(members: Iterable[Member], flwr: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Tell the SuperLink names and public keys; one that it has already is well."""

    def tell(member: Member, key: Path) -> None:
        write_text(key, f"{member.public_key}\n")
        done = flwr("supernode", "register", str(key), CONNECTION, "--name", member.name)
        if done.returncode and "already in use" not in done.stdout + done.stderr:
            raise FedawsError(f"cannot register {member.name}: {_last_line(done)}")

    with TemporaryDirectory() as keys, ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda member: tell(member, Path(keys) / f"{member.client}.pub"), members))


def up(root: Path, say: Say) -> list[dict[str, Any]]:
    """Start everything, run to the end, stop everything; gives the metrics. Of a run that has ended only these."""
    with cluster(root, say) as found:
        folder = RunFolder(found.place.run)
        if folder.finished:
            say(f"the run in {folder.path} has ended; move it away to begin another")
            return folder.metrics()
        for member in found.members:
            examples = found.place.node(member.name) / "data.npz"
            if not examples.exists():
                raise FedawsError(f"no {examples}; put the examples of {member.name} there, as an array x")
        found.start()
        run_id = found.submit()
        found.follow(run_id)
        sent, received = found.traffic(run_id)
        say(f"the nodes were sent {sent:,} bytes and sent {received:,}")
        return folder.metrics()


class _Told:
    """What a person has been told of a run folder."""

    def __init__(self, place: Place, say: Say) -> None:
        self._folder = RunFolder(place.run)
        self._say = say
        self._round = 0
        self._log = place.run / SERVER_LOG
        self._read = self._log.stat().st_size if self._log.exists() else 0
        self._rounds = configuration.load(str(place.server / "config.toml")).train.rounds

    def news(self) -> bool:
        """A line for every new checkpoint, with the figures if there are any; who is missing, what was dropped."""
        self._repeat_log()
        files = self._folder.checkpoints()
        done = int(files[-1].stem.removeprefix("round-")) if files else 0
        if done <= self._round:
            return False
        self._round = done
        row: dict[str, Any] = next((r for r in reversed(self._folder.metrics()) if r["round"] == done), {})
        figures = f"  loss {row['loss']:.4g}" if row else ""
        figures += f"  P@1 {100 * row['precision@1']:.1f} %" if "precision@1" in row else ""
        figures += f"  EER {100 * row['strangers_eer']:.1f} %" if "strangers_eer" in row else ""
        self._say(f"round {done}/{self._rounds}{figures}")
        return True

    def _repeat_log(self) -> None:
        """Say what the server has warned of, and whom it waits for."""
        with suppress(OSError), self._log.open("rb") as log:
            log.seek(self._read)
            whole = log.read().rpartition(b"\n")[0]
            self._read += len(whole) + 1 if whole else 0
            for line in whole.decode(errors="replace").splitlines():
                text = line.split(" ", 3)[-1]
                if " WARNING " in line or text.startswith("waiting for"):
                    self._say(printable(text))


def free_port() -> int:
    """A port of loopback that nobody has."""
    with socket.socket() as free:
        free.bind((_HOST, 0))
        return int(free.getsockname()[1])


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection((_HOST, port), timeout=1):
        return True
    return False


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return printable(lines[-1]) if lines else f"exit code {done.returncode}"
