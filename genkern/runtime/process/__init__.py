"""What a process that calls kernels has and does besides: its configuration, where its winners come from, recording of
sizes that nobody tuned, and their tuning in the background.

May import: what runtime may, and of formats and the journal how files are read, written and locked.
"""
