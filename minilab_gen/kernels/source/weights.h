// Weights on their way from a file into panels.
#pragma once

#include "backend.h"
#include "memory.h"

namespace mlk {

struct Source {
    const void* data;  // (rows, columns), at any address
    int type;          // of mlk_type
    int64_t columns;
    float at(int64_t row, int64_t column) const;
    void row(int64_t row, float* to) const;  // (columns)
};

// Room for a weight, empty. False where there is no memory.
bool make_weight(Weight& weight, Memory& memory, int inputs, int outputs, int type);
// Rows of the source become the outputs of panels first, first + step, ...
void pack(Weight& weight, const Source& source, int64_t rows, int first, int step, float* scratch);
// Output `row` of a weight as floats, (inputs): how a tied embedding is looked up.
void unpack_row(const Weight& weight, int row, float* to);

}  // namespace mlk
