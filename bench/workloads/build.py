"""A small C program and its Makefile."""

from collections.abc import Iterator

from bench.programs import run
from bench.registry import Place, workload
from bench.sources import write_c_project


@workload("make", "make -j2 of {scale.c_units} C files", scene="build")
def make(place: Place) -> Iterator[None]:
    write_c_project(place / "project", place.scale.c_units)
    yield
    run("make", "-s", "-j2", "-C", place / "project")
