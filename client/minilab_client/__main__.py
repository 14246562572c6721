"""Where ``minilab-client`` begins, and ``python -m minilab_client``. It must load nothing before it minds Ctrl-C."""

from minilab_gen.startup import Loading


def main() -> None:
    """Run the program."""
    with Loading():
        from minilab_client.cli import main as program  # click is loaded with it, which takes longer than the rest

    program(prog_name="minilab-client")


if __name__ == "__main__":
    main()
