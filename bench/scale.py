"""How much work a run does: quick, normal, or full."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Scale:
    name: str
    repeats: int
    heavy_repeats: int
    """Of scenes that take long: installations, builds, whole repositories."""
    rival_repeats: int
    """In how many of the repetitions the other file systems take part."""
    files: int
    """Files of the small-operation rows."""
    passes: int
    """How often a warm row goes over them, so that it lasts long enough to be timed."""
    appends: int
    random_writes: int
    synced_writes: int
    stream_mb: int
    tree_files: int
    listing_entries: int
    readdir_entries: tuple[int, ...]
    """Sizes of directories that are listed by name alone."""
    transactions: int
    wheels: tuple[str, ...]
    """Python packages that are installed, with what they depend on."""
    releases: tuple[str, ...]
    """Releases of Django that make up the git repository."""
    import_files: int
    import_mb: int
    idle_seconds: float
    history_files: int
    """Files around the ten that change between two checkpoints."""
    backup_files: int
    """The same beside tools that copy files."""
    flat_files: tuple[int, ...]
    """Sizes of workspaces between which the time of a save must not differ."""
    flat_checkpoints: tuple[int, ...]
    """Numbers of checkpoints between which the time of a verb must not differ."""
    commits: int
    """The last commits of this repository, replayed as checkpoints."""
    size_rivals: tuple[str, ...]
    """Who replays them too; some take half a second for each."""
    memory_files: int
    """Files in the workspace for the memory figure; 0 leaves it out."""

    @property
    def journal_transactions(self) -> int:
        """With a rollback journal each takes several syncs."""
        return self.transactions // 5

    @property
    def wheels_text(self) -> str:
        return ", ".join(self.wheels)

    def repeated(self, repeats: int | None) -> "Scale":
        """The same work, so often for every row and everyone."""
        if repeats is None:
            return self
        return replace(self, repeats=repeats, heavy_repeats=repeats, rival_repeats=repeats)


QUICK = Scale(
    name="quick",
    repeats=3,
    heavy_repeats=1,
    rival_repeats=1,
    files=1_500,
    passes=5,
    appends=10_000,
    random_writes=5_000,
    synced_writes=200,
    stream_mb=128,
    tree_files=2_000,
    listing_entries=10_000,
    transactions=500,
    readdir_entries=(10, 1_000, 10_000),
    wheels=("django",),
    releases=("4.2", "5.2"),
    import_files=10_000,
    import_mb=256,
    idle_seconds=5.0,
    history_files=5_000,
    backup_files=1_000,
    flat_files=(1_000, 20_000),
    flat_checkpoints=(1, 100),
    commits=20,
    size_rivals=("git", "btrfs", "rsync", "restic", "borg"),
    memory_files=0,
)
#: For rivals that are so slow that the sizes of the others would take them an hour.
SMALL = replace(
    QUICK,
    name="small",
    repeats=1,
    heavy_repeats=1,
    files=500,
    appends=2_000,
    random_writes=1_000,
    synced_writes=100,
    stream_mb=64,
    tree_files=1_000,
    listing_entries=2_000,
    readdir_entries=(10, 100, 2_000),
    transactions=100,
)
NORMAL = Scale(
    name="normal",
    repeats=3,
    heavy_repeats=2,
    rival_repeats=1,
    files=5_000,
    passes=5,
    appends=50_000,
    random_writes=20_000,
    synced_writes=500,
    stream_mb=512,
    tree_files=10_000,
    listing_entries=20_000,
    transactions=10_000,
    readdir_entries=(10, 1_000, 100_000),
    wheels=("django", "flask", "sqlalchemy", "networkx", "numpy"),
    releases=("3.2", "4.2", "5.2"),
    import_files=50_000,
    import_mb=1_024,
    idle_seconds=10.0,
    history_files=50_000,
    backup_files=5_000,
    flat_files=(1_000, 100_000),
    flat_checkpoints=(1, 10, 100, 1_000),
    commits=200,
    size_rivals=("git", "btrfs", "rsync"),
    memory_files=0,
)
FULL = replace(
    NORMAL,
    name="full",
    memory_files=1_000_000,
    flat_files=(1_000, 10_000, 100_000, 1_000_000),
    size_rivals=QUICK.size_rivals,
)
