"""Commands on recorded truth: `record` keeps what a run measured, `replay` searches it without a GPU.

May import: everything below command.
"""
