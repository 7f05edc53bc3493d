"""All workloads; importing this registers them, in the order of the table."""

from bench.workloads import micro, stream, tree, listing, database, build  # noqa: F401, I001
