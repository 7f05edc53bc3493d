"""The workspace as tools of the Model Context Protocol. Needs the extra `ckptfs[mcp]`."""
