"""Teams of agents: one consistent point over several workspaces and the team's own state."""

from ckptfs.team.snapshots import Meta
from ckptfs.team.team import Team

__all__ = ["Meta", "Team"]
