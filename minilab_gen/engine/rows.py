"""The rows that a step reads, and what is to be said after which of them. It must not know who runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from minilab_gen.engine.scheduler import Chunk
from minilab_gen.engine.sequence import Sequence
from minilab_gen.kernels.logprobs import LogprobRoom
from minilab_gen.kernels.sampler import TokenSampler
from minilab_gen.logprobs import TokenLogprobs

CHOSEN: Final = -1
"""In place of a judged id, where one is chosen."""

_NOT_FINITE: Final = -1
"""Of ``NO_TOKEN``, in place of a chosen id."""

Choice = tuple[Sequence, int, TokenLogprobs | None]
"""A sequence, its next token, of ``NO_TOKEN`` where there is none, and the token's logprobs where they are wanted."""


class StepRows:
    """What a step reads, row by row, and after which of the rows a token is to be chosen or one of a prompt judged."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        ids: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        outputs: list[int] = []
        readers: list[Sequence] = []
        judged: list[int] = []
        counts: list[int] = []
        for sequence, tokens in chunks:
            start, slot = sequence.read, sequence.slot
            assert slot is not None, "a sequence must hold a slot before it is read"
            if tokens == 1:  # nearly always: it decodes
                ids.append(sequence.ids[start])
                slots.append(slot)
                positions.append(start)
            else:
                ids += sequence.ids[start : start + tokens]
                slots += [slot] * tokens
                positions += range(start, start + tokens)
            for position in sequence.judged(tokens) if not sequence.is_scored else ():
                outputs.append(len(ids) - tokens + position - start)
                readers.append(sequence)
                judged.append(sequence.ids[position + 1])
                counts.append(sequence.request.prompt_logprobs or 0)
            if start + tokens == len(sequence.ids):
                outputs.append(len(ids) - 1)
                readers.append(sequence)
                judged.append(CHOSEN)
                counts.append(-1 if sequence.request.logprobs is None else sequence.request.logprobs)
        self.ids, self.slots, self.positions = ids, slots, positions
        self.outputs, self.readers, self.judged = outputs, readers, judged
        """The rows, their sequences, and the ids in prompts that are judged, else that one is chosen."""
        self.room = LogprobRoom(counts, judged) if max(counts, default=-1) >= 0 else None
        """For logprobs, where any are wanted."""

    @property
    def samplers(self) -> list[TokenSampler | None]:
        """Of each output; nothing is drawn where an id is judged."""
        if self.room is None:
            return [reader.sampler for reader in self.readers]
        return [
            reader.sampler if judged == CHOSEN else None
            for reader, judged in zip(self.readers, self.judged, strict=True)
        ]

    def choices(self, chosen: Iterable[int]) -> list[Choice]:
        """The choices among what the kernels said of each output. The rest is added to the scores of the prompts.

        Where logits within a prompt are not finite, that sequence has no choice either.
        """
        if self.room is None:
            return [(reader, token, None) for reader, token in zip(self.readers, chosen, strict=True)]
        choices: list[Choice] = []
        for output, (reader, judged, token) in enumerate(zip(self.readers, self.judged, chosen, strict=True)):
            listed = self.room.of(output)
            if judged == CHOSEN:
                choices.append((reader, token, listed))
            elif listed is not None:
                reader.score(listed)
            else:
                choices.append((reader, _NOT_FINITE, None))
        return choices
