"""Hooks of coding agents: reading what they send, what to save before it, and their settings.

What a hook call needs is of the standard library and starts fast: an agent waits for it.
"""
