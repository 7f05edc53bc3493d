"""A team of ClawTeam's with its members in git work trees, made by its own package.
`python clawteam_layout.py REPOSITORY`, with CLAWTEAM_DATA_DIR set. Knows nothing of the tests."""

from __future__ import annotations

import sys
from pathlib import Path

from clawteam.team.manager import TeamManager
from clawteam.workspace.manager import WorkspaceManager

TeamManager.create_team(name="red", leader_name="lead", leader_id="lead001", description="")
trees = WorkspaceManager(Path(sys.argv[1]))
for name in ("alice", "bob"):
    TeamManager.add_member("red", name, f"{name}01")
    trees.create_workspace("red", name, f"{name}01")
