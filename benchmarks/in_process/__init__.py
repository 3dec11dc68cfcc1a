"""A step loop in the benchmark's own process, in virtual time over a modelled host or in real time over an engine."""
