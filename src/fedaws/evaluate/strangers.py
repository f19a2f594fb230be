"""The open set: how well a model tells people apart who took no part in its training."""

from fedaws.data.strangers import Part, Strangers
from fedaws.errors import FedawsError
from fedaws.evaluate.comparisons import Comparisons, comparisons
from fedaws.evaluate.error_rates import ENOUGH, eer, frr_at_far
from fedaws.evaluate.model import Model

FAR = 0.01
"""The false acceptance rate at which rejections are counted, where there are comparisons enough to show it."""
_MOST = 10_000_000  # comparisons: half a gigabyte while they are sorted


def compared(model: Model, strangers: Strangers, enroll: int, ask: int = 1) -> Comparisons:
    """Everybody is enrolled by the first examples, all others are compared with everybody, `ask` at once."""
    embeddings = model.embed(strangers.x).cpu().numpy()
    return comparisons(embeddings, strangers.people.cpu().numpy(), enroll, ask)


def open_set(model: Model, strangers: Strangers, enroll: int, part: Part = "strangers") -> dict[str, float]:
    """EER, and with enough comparisons FRR at FAR 1 %, under the names of this part."""
    found = compared(model, strangers, enroll)
    own, others = found.targets, found.nontargets
    measures = {f"{part}_eer": eer(own, others)}
    if len(others) >= ENOUGH / FAR:
        measures[f"{part}_frr"] = frr_at_far(own, others, FAR)
    return measures


def check_strangers(part: Part, strangers: Strangers, enroll: int) -> None:
    """Refuse people who cannot be compared, before anything is trained."""
    numbers, counts = strangers.people.unique(return_counts=True)
    fewest = int(counts.argmin())
    if int(counts[fewest]) <= enroll:
        raise FedawsError(
            f"{part}: {strangers.names[fewest]!r} has {int(counts[fewest])} examples, and {enroll} enrol a stranger; "
            "lower data.enroll, or leave out who has so few"
        )
    scores = (len(strangers.people) - enroll * len(numbers)) * len(numbers)
    if scores > _MOST:
        raise FedawsError(f"{part}: {len(numbers):,} people are {scores:,} comparisons; wanted at most {_MOST:,}")
