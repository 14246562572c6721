"""``python -m minilab_client`` is ``minilab-client``. It must not know anything else."""

from minilab_client.cli import main

main(prog_name="minilab-client")
