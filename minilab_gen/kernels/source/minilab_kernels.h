/* The kernels' C interface: plain numbers and pointers, no Python and no torch, so one library fits all of them.
 *
 * Functions that return int32_t give 0, or -1 with a message in mlk_error(). A model is used by one thread at a time;
 * different models by any. Memory that is handed in may lie at any address and is read only during the call. */
#ifndef MINILAB_KERNELS_H
#define MINILAB_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MLK_API __attribute__((visibility("default")))
#define MLK_ABI 7      /* of this file: what a caller was compiled or written against */
#define MLK_NUMERICS 1 /* of the bits: raised whenever any logit or draw changes */

typedef struct mlk_model mlk_model;
typedef struct mlk_sampler mlk_sampler;

/* What a model is made of. A layer adds to the residual stream what attention gives, then what its feed-forward part
 * gives; the fields say what stands before, between and behind these. */
typedef struct mlk_shape {
    int32_t vocab, context, layers, heads, kv_heads, head_dim, d_model, d_hidden;
    int32_t rope_dim;                                 /* of a head, its first so many dimensions are turned; even */
    int32_t tied, learned_positions;                  /* 0 or 1, as all that follow */
    int32_t qkv_bias, output_bias, feed_forward_bias; /* of products */
    int32_t layer_norm;                               /* means are taken away, and norms have biases; else RMS norms */
    int32_t pre_norm, post_norm;                      /* what a part reads is normed; what it adds is */
    int32_t head_norm, row_norm;                      /* queries and keys are: each head, or all heads as one row */
    int32_t parallel;                                 /* both parts read what the layer was given */
    int32_t gated, activation;                        /* of the feed-forward part; of mlk_activation */
    double norm_eps, gain_offset;                     /* what is added to stored gains */
    double embedding_scale, residual_scale;           /* multiply embeddings, and what a part adds */
    double attention_scale;                           /* multiplies scores; 0 is 1 / sqrt(head_dim) */
    double logit_divisor;
} mlk_shape;

enum mlk_activation { MLK_SILU, MLK_GELU_TANH, MLK_GELU };

/* Rotary positions. Each kind reads of what follows it what it needs. */
typedef struct mlk_rope {
    int32_t kind;     /* of mlk_rope_kind */
    int32_t truncate; /* whether YaRN's mixture begins and ends at whole dimensions; 0 or 1 */
    double theta;
    double factor;              /* what slow angles are divided by */
    double low, high, original; /* turns within so many positions, between which angles are mixed */
    double attention;           /* what sines and cosines are multiplied by; 0 is 1 */
    const float* divisors;      /* (rope_dim / 2), of each frequency */
} mlk_rope;

enum mlk_rope_kind { MLK_ROPE_PLAIN, MLK_ROPE_LINEAR, MLK_ROPE_LLAMA3, MLK_ROPE_YARN, MLK_ROPE_LONG };

#define MLK_ROPES 2 /* of a model; a layer has one of them or none */

enum mlk_type { MLK_FLOAT32 = 0, MLK_BFLOAT16 = 1, MLK_INT8 = 2, MLK_FLOAT16 = 3 }; /* float16 as a source only */

enum mlk_tensor {
    MLK_EMBEDDING,
    MLK_POSITIONS, /* learned ones, (context, d_model) */
    MLK_NORM,
    MLK_NORM_BIAS,
    MLK_HEAD, /* the head of untied models */
    MLK_ATTENTION_NORM,
    MLK_ATTENTION_NORM_BIAS,
    MLK_QUERY,
    MLK_KEY,
    MLK_VALUE,
    MLK_QUERY_BIAS,
    MLK_KEY_BIAS,
    MLK_VALUE_BIAS,
    MLK_QUERY_NORM,
    MLK_KEY_NORM,
    MLK_OUTPUT,
    MLK_OUTPUT_BIAS,
    MLK_ATTENTION_POST_NORM,
    MLK_FEED_FORWARD_NORM,
    MLK_FEED_FORWARD_NORM_BIAS,
    MLK_GATE,
    MLK_GATE_BIAS,
    MLK_UP,
    MLK_UP_BIAS,
    MLK_DOWN,
    MLK_DOWN_BIAS,
    MLK_FEED_FORWARD_POST_NORM,
    MLK_TENSORS
};

/* Which logprobs of a step's outputs are wanted, and where they go: logarithms of the model's own probabilities, as
 * mlk_logprobs gives them. */
typedef struct mlk_listing {
    int32_t most;          /* of counts */
    const int32_t* counts; /* (outputs): so many of the most probable tokens are listed; -1 where nothing is wanted */
    const int32_t* judged; /* (outputs): the token whose logprob is wanted, not chosen but given; -1 the chosen one */
    float* of_tokens;      /* (outputs): the logprob of the judged or chosen token; NaN where logits are not finite */
    int32_t* ids;          /* (outputs, most) */
    float* of_ids;         /* (outputs, most) */
} mlk_listing;

/* One pass over rows of many sequences. The rows of a slot stand together, at ascending positions without a hole, and
 * begin no later than where the slot's keys end. */
typedef struct mlk_step {
    int32_t rows, outputs;
    const int32_t *ids, *slots, *positions; /* (rows) */
    const int32_t* output_rows;             /* (outputs), ascending */
    float* logits;                          /* (outputs, vocab), or null */
    int32_t* tokens;                        /* (outputs): the chosen ids, or of mlk_no_token; or null */
    mlk_sampler* const* samplers;           /* (outputs), a null one is greedy, no other stands twice; or null */
    const mlk_listing* listing;             /* or null: no logprobs */
} mlk_step;

/* What stands in place of a chosen id where there is none. */
enum mlk_no_token {
    MLK_NOT_FINITE = -1, /* the logits are NaN, or the highest is infinite */
    MLK_ALL_MASKED = -2, /* the settings leave no token */
    MLK_NO_ROOM = -3     /* there is no memory for what the sampler must note, or it is of another vocabulary */
};

/* How the next token is chosen, in the order of the fields. Lists are copied. */
typedef struct mlk_settings {
    int32_t vocab;
    int32_t biases;
    const int32_t* bias_ids; /* (biases) */
    const float* bias;       /* (biases), added to these ids */
    int32_t allowed;         /* how many; -1: all ids */
    int32_t stops;
    const int32_t* allowed_ids; /* (allowed) */
    const int32_t* stop_ids;    /* (stops), which cannot be chosen before min_tokens */
    int64_t min_tokens;
    int32_t bad_words, longest_bad_word;
    const int32_t* bad_word_ids;                                   /* of each word: how many ids, and the ids */
    float repetition_penalty, frequency_penalty, presence_penalty; /* 1, 0 and 0: none */
    float temperature;                                             /* 0 is greedy: the highest of what stands then */
    int32_t top_k;                                                 /* 0: all */
    float top_p, min_p;                                            /* 1 and 0: all */
    uint64_t seed;
} mlk_settings;

MLK_API int32_t mlk_abi(void);
MLK_API int32_t mlk_numerics(void);
MLK_API const char* mlk_build(void);    /* a hash of the sources and of how they were compiled */
MLK_API const char* mlk_error(void);    /* of this thread's last call that failed */
MLK_API const char* mlk_backend(void);  /* the one in use; null where MINILAB_KERNELS names none that runs here */
MLK_API const char* mlk_backends(void); /* those that run here, best first, with blanks between */
/* For tests: the back end that a processor with this CPUID and XCR0 gets. Leaf 1 ecx, leaf 7 ebx, low half of XCR0. */
MLK_API const char* mlk_backend_for(uint32_t ecx1, uint32_t ebx7, uint32_t xcr0);

MLK_API mlk_model* mlk_create(const mlk_shape* shape, int32_t type, int32_t slots, int32_t threads);
/* Another decoder over the weights of this one, with slots and threads of its own: it may run while the first does, and
 * outlive it. No tensor may be set after that. */
MLK_API mlk_model* mlk_beside(const mlk_model* model, int32_t slots, int32_t threads);
MLK_API void mlk_destroy(mlk_model* model);
MLK_API int32_t mlk_set(mlk_model* model, int32_t tensor, int32_t layer, int32_t source_type, const void* data,
                        int64_t rows, int64_t columns); /* a vector has 1 row */
MLK_API int32_t mlk_set_rope(mlk_model* model, int32_t index, const mlk_rope* rope);
/* How a layer attends: over so many positions up to its own, 0 for all; by which rope, -1 for none. Without a call: 0,
 * 0. */
MLK_API int32_t mlk_set_layer(mlk_model* model, int32_t layer, int32_t window, int32_t rope);
MLK_API int32_t mlk_run(mlk_model* model, const mlk_step* step);
MLK_API void mlk_release(mlk_model* model, int32_t slot);       /* give the memory of a slot's keys and values back */
MLK_API int32_t mlk_threads(mlk_model* model, int32_t threads); /* use so many of those made; returns how many */
MLK_API int64_t mlk_weight_bytes(const mlk_model* model);

/* A sampler: one sequence's settings, its generator, and of its ids what the settings ask for. It notes what it
 * chooses. Draws are those of torch's CPU generator and multinomial. Null without memory, or with an id outside the
 * vocabulary. */
MLK_API mlk_sampler* mlk_sampler_create(const mlk_settings* settings);
MLK_API void mlk_sampler_destroy(mlk_sampler* sampler);
/* Tell a new sampler the prompt and what was answered to it before: it goes on as if it had chosen that itself. */
MLK_API int32_t mlk_sampler_begin(mlk_sampler* sampler, const int32_t* prompt, int64_t prompt_ids,
                                  const int32_t* answered, int64_t answered_ids);
/* Let only the ids be chosen whose bits are set, bit i % 32 of word i / 32, until another mask is given; null: all. */
MLK_API int32_t mlk_sampler_mask(mlk_sampler* sampler, const uint32_t* bits);
MLK_API int32_t mlk_choose(const float* logits, int64_t stride, int32_t rows, int32_t vocab,
                           mlk_sampler* const* samplers, int32_t* tokens);
/* The logprob of a token, and ids and logprobs of the count most probable, of equals the lowest ids first: ids are -1
 * where the vocabulary has fewer. A logprob is at least -9999, and that of the token NaN where logits are not finite.
 */
MLK_API int32_t mlk_logprobs(const float* logits, int32_t vocab, int32_t token, int32_t count, float* of_token,
                             int32_t* ids, float* of_ids);
/* What a sampler that is not greedy would draw the next token from. */
MLK_API int32_t mlk_probabilities(const float* logits, int32_t vocab, const mlk_sampler* sampler, float* out);

/* For tests. */
MLK_API int32_t mlk_rope_tables(const mlk_rope* rope, int32_t rope_dim, int32_t context, float* cosine,
                                float* sine); /* both (context, rope_dim / 2) */
/* fused = fma(a, b, c), exps = exp(a), activations = that of a */
MLK_API int32_t mlk_functions(const float* a, const float* b, const float* c, float* fused, float* exps,
                              float* activations, int32_t activation, int32_t count);
MLK_API void mlk_to_bfloat16(const float* from, uint16_t* to, int64_t count);
MLK_API void mlk_from_float16(const uint16_t* from, float* to, int64_t count);
MLK_API void mlk_logarithms(const double* from, double* to, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
