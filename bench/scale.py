"""How much work a run does: quick, normal, or full."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Scale:
    """A normal run's sizes stand here; the others say in what they differ."""

    name: str
    repeats: int = 3
    heavy_repeats: int = 2
    """Of scenes that take long: installations, builds, whole repositories."""
    rival_repeats: int = 1
    """In how many of the repetitions the other file systems take part."""
    files: int = 5_000
    """Files of the small-operation rows."""
    passes: int = 5
    """How often a warm row goes over them, so that it lasts long enough to be timed."""
    appends: int = 50_000
    random_writes: int = 20_000
    synced_writes: int = 500
    stream_mb: int = 512
    tree_files: int = 10_000
    listing_entries: int = 20_000
    readdir_entries: tuple[int, ...] = (10, 1_000, 100_000)
    """Sizes of directories that are listed by name alone."""
    transactions: int = 10_000
    bulk_rows: int = 500_000
    """Rows of the database that is filled in one transaction."""
    page_mb: int = 128
    """Bytes that are written 4 KiB at a time."""
    log_lines: int = 50_000
    wheels: tuple[str, ...] = ("django", "flask", "sqlalchemy", "networkx", "numpy")
    """Python packages that are installed, with what they depend on."""
    releases: tuple[str, ...] = ("3.2", "4.2", "5.2")
    """Releases of Django that make up the git repository."""
    rebase_commits: int = 50
    """Commits of the branch that is rebased."""
    configure_makes: bool = True
    """Whether a build with autotools goes on after configure."""
    import_files: int = 50_000
    import_mb: int = 1_024
    idle_seconds: float = 10.0
    history_files: int = 50_000
    """Files around the ten that change between two checkpoints."""
    backup_files: int = 5_000
    """The same beside tools that copy files."""
    flat_files: tuple[int, ...] = (1_000, 100_000)
    """Sizes of workspaces between which the time of a save must not differ."""
    fork_files: tuple[int, int] = (1_000, 100_000)
    """Sizes of workspaces that are forked."""
    flat_checkpoints: tuple[int, ...] = (1, 10, 100, 1_000)
    """Numbers of checkpoints between which the time of a verb must not differ."""
    commits: int = 200
    """The last commits of this repository, replayed as checkpoints."""
    size_rivals: tuple[str, ...] = ("git", "btrfs", "rsync")
    """Who replays them too; some take half a second for each."""
    upkeep_files: int = 12_000
    """Files of the workspace in which others wait beside a verb."""
    upkeep_saves: int = 60
    upkeep_checkpoints: tuple[int, ...] = (100, 1_000, 10_000)
    """Numbers of checkpoints that verbs look at."""
    upkeep_trees: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    """Sizes of directories that are mounted and unmounted."""
    client_creates: int = 5_000
    """Files that each of several clients creates."""
    day_commits: int = 1_200
    """The last commits of this repository, replayed as tool calls of an agent."""
    versions_mb: int = 100
    """The size of a file into which bytes are inserted between two checkpoints."""
    memory_files: int = 0
    """Files in the workspace for the memory figure; 0 leaves it out."""
    build_rounds: int = 60
    """How often a build is made and cleaned, to see how much of it is kept; three thirds."""

    @property
    def journal_transactions(self) -> int:
        """With a rollback journal each takes several syncs."""
        return self.transactions // 5

    @property
    def configure_text(self) -> str:
        return "configure and make -j2" if self.configure_makes else "configure"

    @property
    def wheels_text(self) -> str:
        return ", ".join(self.wheels)

    def repeated(self, repeats: int | None) -> "Scale":
        """The same work, so often for every row and everyone."""
        if repeats is None:
            return self
        return replace(self, repeats=repeats, heavy_repeats=repeats, rival_repeats=repeats)


NORMAL = Scale("normal")
QUICK = Scale(
    name="quick",
    heavy_repeats=1,
    files=1_500,
    appends=10_000,
    random_writes=5_000,
    synced_writes=200,
    stream_mb=128,
    tree_files=2_000,
    listing_entries=10_000,
    readdir_entries=(10, 1_000, 10_000),
    transactions=500,
    bulk_rows=50_000,
    page_mb=32,
    log_lines=10_000,
    wheels=("django",),
    releases=("4.2", "5.2"),
    rebase_commits=15,
    configure_makes=False,
    import_files=10_000,
    import_mb=256,
    idle_seconds=5.0,
    history_files=5_000,
    backup_files=1_000,
    flat_files=(1_000, 20_000),
    fork_files=(1_000, 10_000),
    flat_checkpoints=(1, 100),
    commits=20,
    size_rivals=("git", "btrfs", "rsync", "restic", "borg"),
    build_rounds=15,
    upkeep_files=2_000,
    upkeep_saves=20,
    upkeep_checkpoints=(100, 400),
    upkeep_trees=(1_000, 10_000),
    client_creates=1_000,
    day_commits=60,
    versions_mb=20,
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
    bulk_rows=10_000,
    page_mb=8,
)
FULL = Scale(
    name="full",
    memory_files=1_000_000,
    flat_files=(1_000, 10_000, 100_000, 1_000_000),
    size_rivals=QUICK.size_rivals,
)
