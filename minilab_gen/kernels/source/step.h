// What a step is made of: products, attention and choices, and the two ways to walk through all layers.
#pragma once

#include "model.h"

namespace mlk {

struct Rows {
    int first, count;
};

struct ProductAt {
    Kind kind;
    int layer;
};

const Weight& weight_of(const Model& m, Kind kind, int layer);
// The product that comes next; after the head, the first of the next step.
ProductAt after(const Model& m, Kind kind, int layer);

void embed(Model& m, int row);

// What a part reads: rows of the residual stream, normed where the model has norms before its parts.
struct Gains {
    const float *gain, *bias;
};
Gains gains_before(const Model& m, Kind kind, int layer);
void norm_rows(const Model& m, const float* x, Gains gains, int rows, float* to);
// Panels `first` to `last` of a product; `next` is what the thread will read afterwards.
void multiply(Model& m, Own& own, Kind kind, int layer, const float* x, Rows rows, int first, int last,
              const char* next);
// Keys and values of one row and key head go into its slot; its queries are turned.
void place(Model& m, int layer, int row, int kv);
// The same for all its heads, whose queries and keys are normed together where the model has that.
void place_row(Model& m, int layer, int row);
// Heads from `first` to `last` of a key head, for some tokens of one sequence.
void attend(Model& m, Own& own, int layer, Run tokens, int kv, int first, int last);
// What a part gave for a row is normed, scaled and added to the residual stream.
void settle(Model& m, Kind kind, int layer, int row);
void norm_outputs(const Model& m, Rows outputs, float* to);
void choose_output(Model& m, Own& own, int output);

// Few rows share each product.
void run_stages(Model& m);
// How many bundles the rows make; 0 where they are too few to be cut.
int bundles_of(const Model& m, int rows);
// Many rows: each bundle of them goes through all layers by itself.
void run_bundles(Model& m, int count);

}  // namespace mlk
