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
#define MLK_ABI 4      /* of this file: what a caller was compiled or written against */
#define MLK_NUMERICS 1 /* of the bits: raised whenever any logit or draw changes */

typedef struct mlk_model mlk_model;
typedef struct mlk_sampler mlk_sampler;

typedef struct mlk_shape {
    int32_t vocab, context, layers, heads, kv_heads, head_dim, d_model, d_hidden;
    int32_t tied, qkv_bias, head_norm, output_bias; /* 0 or 1 */
    double norm_eps, rope_theta;
    int32_t rope_kind;                         /* of mlk_rope_kind; each reads of what follows what it needs */
    int32_t rope_truncate;                     /* whether YaRN's mixture begins and ends at whole dimensions; 0 or 1 */
    double rope_factor;                        /* what slow angles are divided by */
    double rope_low, rope_high, rope_original; /* turns within so many positions, between which angles are mixed */
    double rope_attention;                     /* what sines and cosines are multiplied by; 0 is 1 */
    const float* rope_divisors;                /* (head_dim / 2), of each frequency */
} mlk_shape;

enum mlk_rope_kind { MLK_ROPE_PLAIN, MLK_ROPE_LINEAR, MLK_ROPE_LLAMA3, MLK_ROPE_YARN, MLK_ROPE_LONG };

enum mlk_type { MLK_FLOAT32 = 0, MLK_BFLOAT16 = 1, MLK_INT8 = 2, MLK_FLOAT16 = 3 }; /* float16 as a source only */

enum mlk_tensor {
    MLK_EMBEDDING,
    MLK_NORM,
    MLK_HEAD, /* the head of untied models */
    MLK_ATTENTION_NORM,
    MLK_QUERY,
    MLK_KEY,
    MLK_VALUE,
    MLK_QUERY_BIAS,
    MLK_KEY_BIAS,
    MLK_VALUE_BIAS,
    MLK_OUTPUT_BIAS,
    MLK_QUERY_NORM,
    MLK_KEY_NORM,
    MLK_OUTPUT,
    MLK_FEED_FORWARD_NORM,
    MLK_GATE,
    MLK_UP,
    MLK_DOWN,
    MLK_TENSORS
};

/* One pass over rows of many sequences. The rows of a slot stand together, at ascending positions without a hole, and
 * begin no later than where the slot's keys end. */
typedef struct mlk_step {
    int32_t rows, outputs;
    const int32_t *ids, *slots, *positions; /* (rows) */
    const int32_t* output_rows;             /* (outputs), ascending */
    float* logits;                          /* (outputs, vocab), or null */
    int32_t* tokens;                        /* (outputs): the chosen ids, -1 where logits are not finite; or null */
    mlk_sampler* const* samplers;           /* (outputs), a null one is greedy, no other stands twice; or null */
} mlk_step;

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
MLK_API int32_t mlk_run(mlk_model* model, const mlk_step* step);
MLK_API void mlk_release(mlk_model* model, int32_t slot);       /* give the memory of a slot's keys and values back */
MLK_API int32_t mlk_threads(mlk_model* model, int32_t threads); /* use so many of those made; returns how many */
MLK_API int64_t mlk_weight_bytes(const mlk_model* model);

/* Draws as torch's CPU generator and multinomial do. top_k 0 and top_p 1 keep all. Temperature 0 is greedy. */
MLK_API mlk_sampler* mlk_sampler_create(uint64_t seed, float temperature, int32_t top_k, float top_p);
MLK_API void mlk_sampler_destroy(mlk_sampler* sampler);
MLK_API void mlk_sampler_skip(mlk_sampler* sampler, int32_t vocab, int64_t tokens); /* past tokens drawn before */
MLK_API int32_t mlk_choose(const float* logits, int64_t stride, int32_t rows, int32_t vocab,
                           mlk_sampler* const* samplers, int32_t* tokens);
MLK_API int32_t mlk_probabilities(const float* logits, int32_t vocab, const mlk_sampler* sampler, float* out);

/* For tests. */
MLK_API int32_t mlk_rope(const mlk_shape* shape, float* cosine, float* sine); /* both (context, head_dim / 2) */
MLK_API int32_t mlk_functions(const float* a, const float* b, const float* c, float* fused, float* exps, float* silus,
                              int32_t count);
MLK_API void mlk_to_bfloat16(const float* from, uint16_t* to, int64_t count);
MLK_API void mlk_from_float16(const uint16_t* from, float* to, int64_t count);
MLK_API void mlk_logarithms(const double* from, double* to, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
