"""How much work a run does: quick, normal, or full."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Scale:
    name: str
    repeats: int
    files: int
    """Files of the small-operation rows."""
    passes: int
    """How often a warm row goes over them, so that it lasts long enough to be timed."""
    appends: int
    synced_writes: int
    stream_mb: int
    tree_files: int
    listing_entries: int
    transactions: int
    c_units: int
    import_files: int
    import_mb: int
    idle_seconds: float
    history_files: int
    """Files around the ten that change between two checkpoints."""
    flat_files: tuple[int, ...]
    """Sizes of workspaces between which the time of a save must not differ."""
    commits: int
    """Commits of this repository that are replayed as checkpoints."""
    memory_files: int
    """Files in the workspace for the memory figure; 0 leaves it out."""

    def repeated(self, repeats: int | None) -> "Scale":
        return self if repeats is None else replace(self, repeats=repeats)


QUICK = Scale(
    name="quick",
    repeats=3,
    files=2_000,
    passes=5,
    appends=10_000,
    synced_writes=200,
    stream_mb=256,
    tree_files=5_000,
    listing_entries=20_000,
    transactions=200,
    c_units=12,
    import_files=20_000,
    import_mb=512,
    idle_seconds=5.0,
    history_files=5_000,
    flat_files=(1_000, 20_000),
    commits=30,
    memory_files=0,
)
NORMAL = Scale(
    name="normal",
    repeats=5,
    files=5_000,
    passes=5,
    appends=50_000,
    synced_writes=500,
    stream_mb=512,
    tree_files=20_000,
    listing_entries=100_000,
    transactions=1_000,
    c_units=40,
    import_files=50_000,
    import_mb=1_024,
    idle_seconds=10.0,
    history_files=50_000,
    flat_files=(1_000, 100_000),
    commits=100,
    memory_files=0,
)
FULL = replace(NORMAL, name="full", memory_files=1_000_000, flat_files=(1_000, 100_000, 1_000_000))
