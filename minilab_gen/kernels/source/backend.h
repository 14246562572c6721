// What a back end offers: one table of functions over plain data. It must hold nothing that a compiler could emit
// twice.
#pragma once

#include <cstdint>

namespace mlk {

// (outputs, inputs), in panels of 16 outputs: [panel][input][16]. A row's product reads a panel from end to end, and
// each load feeds 16 chains.
struct Weight {
    char* data;
    float* scale;  // (panels * 16), of int8 alone: what an output is multiplied by at the end of its chain
    int inputs, outputs, panels, type;
    int64_t panel_bytes;
};

enum Epilogue : int {
    STORE,     // out = product + bias
    ADD,       // out += product + bias, the residual stream
    ACTIVATE,  // out = activation(product + bias)
    GATE       // even panels are gates, odd ones what they gate: out = activation(gate) * up, half as many columns
};

struct Product {
    const float* x;  // (rows, inputs)
    int64_t x_stride;
    int rows;
    const Weight* weight;
    int first, last;  // panels; even for GATE
    Epilogue epilogue;
    int activation;  // of mlk_activation
    float* out;
    int64_t out_stride;
    const float* bias;  // (panels * 16) or null
    float* gates;       // scratch, (rows, 16)
    float* wide;        // scratch, (inputs, 16 * WIDEST): panels widened to float once for many rows
    const char* next;   // panels that this thread will probably read afterwards, or null
};
constexpr int WIDEST = 8;          // panels at most in one tile
constexpr int LARGEST_HEAD = 512;  // of a head; scratch of back ends is that long

struct Norm {
    const float* x;
    float* out;                // may be x
    const float *gain, *bias;  // a bias makes it a layer norm, without one it is an RMS norm
    int size;                  // all have room up to the next multiple of 16; x is 0 there
    float eps;
};

// The keys and values of one head of one slot: keys [position / 16][head_dim][16], values [position][padded head_dim].
// Scores of 16 positions then are a panel's product, and need no sum across lanes.
struct Strip {
    float *keys, *values;
};

// One token's query heads of one key head: normed, turned; its key and value: stored.
struct Place {
    float *queries, *key;
    const float* value;
    int heads, head_dim, position;
    int rope_dim;                        // dimensions that are turned, the first of each head
    const float *cosine, *sine;          // (rope_dim / 2) of this position
    const float *query_gain, *key_gain;  // or null
    float eps;
    Strip strip;
};

// Tokens of one sequence at position, position + 1, ...; for each the query heads of one key head.
struct Attention {
    const float* queries;              // (tokens, heads, head_dim)
    float* out;                        // the same
    int64_t query_stride, out_stride;  // from token to token
    int tokens, heads, head_dim, position;
    int window;  // positions that a token sees, its own the last of them; 0: all
    float query_scale;
    Strip strip;
    float* scores;  // scratch, (6, padded context)
};

struct Top {
    float highest;
    int id;  // the lowest of equals; -1 where a logit is NaN or the highest is not finite
};

struct Backend {
    const char* name;
    int few_panels[4];  // panels that one row, two, three, or more take at once
    void (*product)(const Product&);
    void (*norm)(const Norm&);
    void (*place)(const Place&);
    void (*attend)(const Attention&);
    Top (*top)(const float* logits, int count);
    // exp((x - highest) / divisor) into out, padded with zeros up to a multiple of 16; returns its sum.
    float (*exponentials)(const float* logits, int count, float highest, float divisor, float* out);
    void (*divide)(float* numbers, int count, float by);
    // For tests: fma(a, b, c), exp(a) and an activation of a, count a multiple of 16.
    void (*functions)(const float* a, const float* b, const float* c, float* fused, float* exps, float* activations,
                      int activation, int count);
};

}  // namespace mlk
