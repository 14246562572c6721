"""The rows that a step reads, and what is to be said after which of them. It must not know who runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
        wanted: dict[int, tuple[int, int]] = {}
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
            if sequence.wants_logprobs:
                for position in sequence.judged(tokens):
                    wanted[len(outputs)] = sequence.ids[position + 1], sequence.request.prompt_logprobs or 0
                    outputs.append(len(ids) - tokens + position - start)
                    readers.append(sequence)
                if sequence.request.logprobs is not None:
                    wanted[len(outputs)] = CHOSEN, sequence.request.logprobs
            if start + tokens == len(sequence.ids):
                outputs.append(len(ids) - 1)
                readers.append(sequence)
        wanted.pop(len(outputs), None)  # of a token that is not chosen yet
        self.ids, self.slots, self.positions = ids, slots, positions
        self.outputs, self.readers = outputs, readers
        """The rows after which something is said, and their sequences."""
        self.room = self._room_for(wanted) if wanted else None
        """For logprobs, where any are wanted."""

    def _room_for(self, wanted: Mapping[int, tuple[int, int]]) -> LogprobRoom:
        every = [wanted.get(output, (CHOSEN, -1)) for output in range(len(self.outputs))]
        self.judged = [judged for judged, _ in every]
        """The ids in prompts that are judged, else that one is chosen; where logprobs are wanted."""
        return LogprobRoom([count for _, count in every], self.judged)

    @property
    def chosen(self) -> list[bool]:
        """Of each output, whether a token is chosen there."""
        return [True] * len(self.outputs) if self.room is None else [judged == CHOSEN for judged in self.judged]

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
        choices: dict[str, Choice] = {}
        for output, (reader, judged, token) in enumerate(zip(self.readers, self.judged, chosen, strict=True)):
            listed = self.room.of(output)
            if reader.name in choices:  # it ends for what was said of another of its rows
                continue
            if judged == CHOSEN:
                choices[reader.name] = reader, token, listed
            elif listed is not None:
                reader.score(listed)
            else:
                choices[reader.name] = reader, _NOT_FINITE, None
        return list(choices.values())
