"""All workloads; importing this registers them, in the order of the table."""

from bench.workloads import micro, stream, listing, tree, repository, install, build, database  # noqa: F401, I001

#: Scenes that take long, and are repeated less often.
HEAVY_SCENES = frozenset(
    {"many", "repository", "pip", "npm", "make", "configure", "pytest", "sqlite", "trees"}
)
