"""Where ``minilab-gateway`` begins, and ``python -m minilab_gateway``. It must load nothing before it minds Ctrl-C."""

from minilab_gen.startup import Loading


def main() -> None:
    """Run the program."""
    with Loading():
        from minilab_gateway.cli import main as program

    program()


if __name__ == "__main__":
    main()
