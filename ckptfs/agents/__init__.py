"""Coding agents: their hooks, the settings that call them, and the MCP server.

`table` lists the agents. A hook call passes through `hook` (deadline, exit code), `hook_call` (asks
the daemon), `hook_input` (reads what the agent sent) and `events` (decides what it means); it loads
only the standard library, because an agent waits for it.
"""
