"""The coding agents themselves, each with a scripted stand-in for its model, in a workspace."""
