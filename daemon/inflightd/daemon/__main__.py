"""`python -m inflightd.daemon` is `inflightd serve`."""

from inflightd.daemon.commands import serve

serve(prog_name="inflightd serve")
