"""Keys of ``config.json`` that change no logit: known to transformers, or left over from training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# fmt: off
HARMLESS: Final = frozenset({
    "_from_model_config", "_name_or_path", "_num_labels", "assistant_confidence_threshold", "assistant_early_exit",
    "assistant_ensemble_weight", "assistant_lookbehind", "attention_dropout", "bad_words_ids", "begin_suppress_tokens",
    "bos_token_id", "cache_config", "chunk_size_feed_forward", "compile_config", "constraints",
    "continuous_batching_config", "custom_pipelines", "decoder_start_token_id", "disable_compile", "diversity_penalty",
    "do_sample", "dola_layers", "dtype", "early_stopping", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty",
    "eos_token_id", "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty", "finetuning_task",
    "force_words_ids", "forced_bos_token_id", "forced_eos_token_id", "guidance_scale", "id2label", "initializer_range",
    "is_assistant", "is_decoder", "is_llama_config", "label2id", "length_penalty", "low_memory", "max_cache_len",
    "max_length", "max_matching_ngram_size", "max_new_tokens", "max_sequence_length", "max_time", "max_window_layers",
    "min_length", "min_new_tokens", "min_p", "no_repeat_ngram_size", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "num_beam_groups", "num_beams", "num_labels", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_logits", "output_past", "output_scores", "pad_token_id",
    "penalty_alpha", "predict_special_tokens", "prefill_chunk_size", "prefix", "pretraining_tp", "problem_type",
    "prompt_lookup_num_tokens", "remove_invalid_values", "renormalize_logits", "repetition_penalty", "return_dict",
    "return_dict_in_generate", "sep_token_id", "sequence_bias", "speculation_type", "stop_strings", "suppress_tokens",
    "target_lookbehind", "task_specific_params", "temperature", "tf_legacy_loss", "token_healing", "tokenizer_class",
    "top_h", "top_k", "top_p", "torch_dtype", "torchscript", "transformers.js_config", "transformers_version",
    "typical_p", "unk_token_id", "use_bfloat16", "use_cache", "use_mtp", "watermarking_config", "xla_device",
})
"""About storage, about training, and about how others generate."""

_LEFT_OVER: Final = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal", "_commit_hash",
    "_flash_attn_2_enabled", "attn_implementation", "auto_map", "bf16", "cache_implementation", "cross_entropy_loss",
    "flash_attn", "flash_attention", "fp16", "gradient_checkpointing", "gradient_checkpointing_kwargs",
    "gradient_checkpointing_use_reentrant", "ignore_index", "loss_type", "max_seq_length", "max_seq_len",
    "model_max_length", "name_or_path", "neftune_noise_alpha", "seq_length", "tokenizer_model_max_length",
    "tokenizer_name", "tokenizer_padding_side", "unsloth_fixed", "unsloth_version", "use_flash_attention",
    "use_flash_attention_2", "use_flash_attn", "use_fused_cross_entropy", "use_liger_kernel", "use_return_dict",
    "use_sdpa",
})
# fmt: on
"""What trainers leave behind, and the code that others would run: the architecture says what is computed."""

_LEFT_OVER_ENDS: Final = ("_dropout", "_dropout_prob", "_pdrop")
"""Parts that are switched off when a model is not trained."""


def left_over(keys: Iterable[str]) -> list[str]:
    """Those of the keys that are let through and ignored, in order."""
    return sorted(key for key in keys if key not in HARMLESS and _is_left_over(key))


def changes_nothing(key: str) -> bool:
    """Whether a model is the same with this key and without it."""
    return key in HARMLESS or _is_left_over(key)


def _is_left_over(key: str) -> bool:
    return key in _LEFT_OVER or key.endswith(_LEFT_OVER_ENDS)
