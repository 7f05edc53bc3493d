"""Every verb of a workspace, once: declared in `verbs`, carried out in the modules by family.

Importing the package costs nothing, since clients read the declarations; `Service` comes when it is
asked for.
"""

TYPE_CHECKING = False  # as type checkers want it; the real one would be an import
if TYPE_CHECKING:
    from ckptfs.service.service import Service

__all__ = ["Service"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ckptfs.service.service import Service

    return Service
