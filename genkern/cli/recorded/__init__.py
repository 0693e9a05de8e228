"""Commands on recorded spaces: `record` stores a run's measurements, `replay` searches them without a GPU.

May import: everything below command, and the rest of command.
"""
