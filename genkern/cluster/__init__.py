"""Work in two steps on machines without a network between them: `compile`, `measure`, `collect`.

May import: everything. Nothing imports it but the command.
"""
