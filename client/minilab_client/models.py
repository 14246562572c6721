"""``minilab-client models``: the models that workers have announced."""

from __future__ import annotations

from dataclasses import asdict

import click

from minilab_client.output import say, write_json, write_table
from minilab_client.settings import ClientSettings, pass_settings, redis_url_option
from minilab_gen.protocol import keys


@click.command(
    epilog="\b\nExample:\n  minilab-client models --json",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array of model cards.")
@redis_url_option
@pass_settings
def models(settings: ClientSettings, as_json: bool) -> None:
    """List the models that can be asked, with what their workers say about them.

    A card stays for a day after its last worker, so that jobs can be submitted meanwhile.
    """
    from minilab_gen.protocol.cards import all_cards
    from minilab_gen.protocol.jobs import workers_alive

    with settings.connect() as connection:
        found = [(card, workers_alive(connection, keys.queue_name(card.name))) for card in all_cards(connection)]
    if as_json:
        write_json([{**asdict(card), "workers_alive": alive} for card, alive in found])
    elif found:
        rows = [
            (
                card.name,
                card.context_length,
                card.vocab_size,
                "yes" if card.chat else "no",
                alive,
                card.fingerprint,
                card.exactness,
            )
            for card, alive in found
        ]
        write_table(("MODEL", "CONTEXT", "VOCABULARY", "CHAT", "WORKERS", "FINGERPRINT", "EXACTNESS"), rows)
    else:
        say(f"no worker has announced a model; jobs for {keys.DEFAULT_MODEL} wait until you start one: minilab-worker")
