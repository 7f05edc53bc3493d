"""Tests of a mounted workspace, seen as programs see it: through the kernel and the CLI."""
