"""llama.cpp as a peer: parallel sequences in one batch, through the low-level part of llama-cpp-python."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import llama_cpp  # type: ignore[import-not-found]
import numpy as np
from peer_gguf import write_gguf
from peer_protocol import Job, Load, Peer, main

_FILES = {
    "float32": ("model.gguf", gguf.GGMLQuantizationType.F32),
    "int8": ("q8_0.gguf", gguf.GGMLQuantizationType.Q8_0),
}
_SMALLEST_BATCH = 512
"""Tokens of one physical batch where jobs are few: llama.cpp's own default."""


def convert(checkpoint: Path, folder: Path) -> None:
    """Write a GGUF file for each kind of weights."""
    for name, kind in _FILES.values():
        write_gguf(checkpoint, folder / name, kind)


class _Context:
    """A model with a slot for each sequence, and the arrays through which batches are handed over."""

    def __init__(self, settings: Load) -> None:
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(
            str(settings.converted / _FILES[settings.weights][0]).encode(), llama_cpp.llama_model_default_params()
        )
        self._context = llama_cpp.llama_init_from_model(model, self._parameters(settings))
        assert self._context, "llama.cpp must take the checkpoint and the settings"
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._sequences = np.arange(settings.max_batch, dtype=np.int32)
        self.max_batch = settings.max_batch

    @staticmethod
    def _parameters(settings: Load) -> llama_cpp.llama_context_params:
        asked = llama_cpp.llama_context_default_params()
        asked.n_ctx = settings.max_batch * settings.max_tokens
        asked.n_seq_max = settings.max_batch
        # All prompts go in with one call.
        asked.n_batch = max(settings.max_batch * settings.max_tokens, _SMALLEST_BATCH)
        asked.n_ubatch = _SMALLEST_BATCH
        asked.n_threads = asked.n_threads_batch = settings.threads
        asked.type_k = asked.type_v = llama_cpp.GGML_TYPE_F32  # the default is half precision
        # Each sequence has keys of its own, as llama.h advises for sequences without a long prefix in common: with one
        # buffer for all, every sequence would be scored against the keys of all, masked.
        asked.kv_unified = False
        asked.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO
        asked.no_perf = True
        return asked

    def decode(self, tokens: list[int], positions: list[int], sequences: list[int], last: list[int]) -> list[int]:
        """Read tokens, one row each, and choose the most probable one after each of the rows in ``last``."""
        rows = len(tokens)
        token, position = np.array(tokens, np.int32), np.array(positions, np.int32)
        ones, wanted = np.ones(rows, np.int32), np.zeros(rows, np.int8)
        wanted[last] = 1
        # One sequence a row: a pointer to its number in self._sequences.
        owner = self._sequences.ctypes.data + self._sequences.itemsize * np.array(sequences, np.uintp)
        batch = llama_cpp.llama_batch(
            n_tokens=rows,
            token=token.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            pos=position.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            n_seq_id=ones.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            seq_id=owner.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            logits=wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )
        failed = llama_cpp.llama_decode(self._context, batch)
        assert not failed, f"llama_decode must take the batch, it answered {failed}"
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), (len(last), self._vocab_size))
        chosen: list[int] = logits.argmax(axis=1).tolist()
        return chosen

    def forget(self, sequence: int) -> None:
        """Free a sequence's keys and values."""
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)


def load(settings: Load) -> Peer:
    context = _Context(settings)

    def run(jobs: list[Job]) -> list[list[int]]:
        assert len(jobs) <= context.max_batch, "each job needs a slot"
        answers: list[list[int]] = [[] for _ in jobs]
        running = list(range(len(jobs)))
        tokens, positions, sequences, last = _prompts(jobs)
        while running:
            for job, token in zip(running, context.decode(tokens, positions, sequences, last), strict=True):
                answers[job].append(token)
                if len(answers[job]) == jobs[job].max_new_tokens:
                    context.forget(job)
            running = [job for job in running if len(answers[job]) < jobs[job].max_new_tokens]
            tokens = [answers[job][-1] for job in running]
            positions = [len(jobs[job].prompt) + len(answers[job]) - 1 for job in running]
            sequences, last = running, list(range(len(running)))
        return answers

    return Peer(f"llama-cpp-python {llama_cpp.__version__}", run)


def _prompts(jobs: list[Job]) -> tuple[list[int], list[int], list[int], list[int]]:
    """All prompts in a row: tokens, positions, whose each is, and the row of each prompt's end."""
    tokens: list[int] = []
    positions: list[int] = []
    sequences: list[int] = []
    last: list[int] = []
    for number, job in enumerate(jobs):
        tokens += job.prompt
        positions += range(len(job.prompt))
        sequences += [number] * len(job.prompt)
        last.append(len(tokens) - 1)
    return tokens, positions, sequences, last


if __name__ == "__main__":
    main(load, convert)
