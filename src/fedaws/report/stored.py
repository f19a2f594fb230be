"""What the files of a run folder may hold: their shapes and limits, which nobody who wrote one need have kept to."""

from typing import Annotated

from pydantic import BaseModel, Field, model_validator

Count = Annotated[int, Field(ge=0, le=2**53)]
Rate = Annotated[float, Field(ge=0, le=1)]
Score = Annotated[float, Field(ge=-1e9, le=1e9)]
PersonName = Annotated[str, Field(max_length=200)]


class Pair(BaseModel):
    """Examples of one class that are taken for another."""

    true: Count
    taken: Count
    count: Count
    examples: list[Count] = Field(default=[], max_length=16)
    images: list[str] = Field(default=[], max_length=16)  # PNG files in base64


class Details(BaseModel):
    """details.json, as `fedaws.evaluate.per_class` makes it."""

    round: Count
    examples: Annotated[Count, Field(ge=1)]
    test_examples: Count
    label_sets: bool
    best_of: Count
    classes_tested: Count
    histogram: list[Count] = Field(min_length=1, max_length=100)
    classes: list[Count] = Field(max_length=10_000)
    right: list[Count]
    count: list[Count]
    errors: Count
    pairs: list[Pair] = Field(max_length=100)
    confusion: list[list[Count]] | None = Field(default=None, max_length=200)

    @model_validator(mode="after")
    def _shapes(self) -> "Details":
        if not len(self.classes) == len(self.right) == len(self.count):
            raise ValueError("its lists differ in length")
        if self.confusion and any(len(row) != len(self.confusion) for row in self.confusion):
            raise ValueError("its confusion matrix is not square")
        return self


class Measured(BaseModel):
    """A rate, and its interval if there is one."""

    value: Rate
    low: Rate | None = None
    high: Rate | None = None


class Threshold(BaseModel):
    """A threshold, and what it costs."""

    wanted: str = Field(max_length=60)
    threshold: Score
    far: Measured
    frr: Measured


class Curve(BaseModel):
    """Corners of a DET curve."""

    far: list[Rate] = Field(min_length=1, max_length=1000)
    frr: list[Rate] = Field(min_length=1, max_length=1000)


class Histogram(BaseModel):
    """Scores of one person and of two, in bins of equal width."""

    low: Score
    high: Score
    same: list[Count] = Field(min_length=1, max_length=1000)
    other: list[Count] = Field(min_length=1, max_length=1000)


class Person(BaseModel):
    """Somebody's errors: their own examples rejected, others' accepted as them."""

    name: PersonName
    examples: Count
    frr: Rate | None = None
    far: Rate | None = None


class TakenFor(BaseModel):
    """The share of one person's examples that are accepted as another."""

    tested: PersonName
    taken: PersonName
    share: Rate
    examples: Count


class People(BaseModel):
    """people.json, as `fedaws.evaluate.people` makes it."""

    trained: bool
    people: Count
    ask: Count | None = None  # examples asked about at once, if that is known
    same: Annotated[Count, Field(ge=1)]
    other: Annotated[Count, Field(ge=1)]
    eer: Measured
    thresholds: list[Threshold] = Field(max_length=20)
    det: Curve
    histogram: Histogram
    at: Score
    each: list[Person] = Field(max_length=2_000)
    pairs: list[TakenFor] = Field(max_length=100)

    @model_validator(mode="after")
    def _shapes(self) -> "People":
        if len(self.det.far) != len(self.det.frr) or len(self.histogram.same) != len(self.histogram.other):
            raise ValueError("its lists differ in length")
        if not self.histogram.low < self.histogram.high:
            raise ValueError("its histogram has no width")
        return self


class Attendance(BaseModel):
    """A line of participants.jsonl: who answered in a round over Flower, and who did not and why."""

    round: Count
    asked: Count
    replies: Count
    answered: list[str] = Field(default=[], max_length=1000)
    dropped: dict[str, str] = Field(default={}, max_length=1000)
