"""`ckptfs mcp`: the workspace as tools of the Model Context Protocol."""

from __future__ import annotations

import os
from argparse import Namespace

from ckptfs.cli import place
from ckptfs.errors import ExtraMissing


def mcp(args: Namespace) -> int:
    workspace = place.workspace(args)
    try:
        from ckptfs.agents.mcp_server import make_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "ckptfs":
            raise
        raise ExtraMissing("the MCP server", error.name or "mcp", "mcp") from error
    os.chdir("/")  # or we would keep the workspace from being unmounted
    make_server(workspace, read_only=args.read_only).run("stdio")
    return 0
