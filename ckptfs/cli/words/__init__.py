"""The options and arguments of the verbs, a module for each family: a command loads only its own.

`WORDS` of a module has the function that adds them, by verb; a verb that is not in it has none.
"""
