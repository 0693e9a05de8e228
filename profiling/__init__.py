"""Everything that touches a running kernel: profilers, the harness of the measured process, its supervisor."""
