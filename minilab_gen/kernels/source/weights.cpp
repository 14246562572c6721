#include "weights.h"

#include <cmath>
#include <cstring>

#include "minilab_kernels.h"
#include "numbers.h"
#include "rules.h"

namespace mlk {

namespace {

constexpr int64_t ONE[4] = {4, 2, 1, 2};  // bytes of a number, by mlk_type
constexpr float MOST = 127.f;             // int8 from -127 to 127: a symmetric range has a zero and no bias
constexpr float LEAST_SCALE = 1.17549435e-38f;

// To the nearest integer, of two equally near the even one.
int8_t rounded(float x) {
    const float round = 12582912.f;
    return static_cast<int8_t>((x + round) - round);
}

float scale_of(const float* row, int64_t columns) {
    float most = 0, all = 0;
    for (int64_t k = 0; k < columns; k++) {
        most = fabsf(row[k]) > most ? fabsf(row[k]) : most;
        all += row[k] - row[k];  // 0, or NaN where a number is not finite
    }
    if (all != 0.f) return all;  // NaN: whatever is multiplied by it is found
    const float scale = most / MOST;
    return scale < LEAST_SCALE ? LEAST_SCALE : scale;
}

}  // namespace

float Source::at(int64_t row, int64_t column) const {
    const char* p = static_cast<const char*>(data) + (row * columns + column) * ONE[type];
    if (type == MLK_FLOAT32) {
        float x;
        memcpy(&x, p, 4);
        return x;
    }
    uint16_t h;
    memcpy(&h, p, 2);
    return type == MLK_BFLOAT16 ? from_bfloat16(h) : from_float16(h);
}

void Source::row(int64_t row, float* to) const {
    if (type == MLK_FLOAT32) {
        memcpy(to, static_cast<const char*>(data) + row * columns * 4, static_cast<size_t>(columns) * 4);
        return;
    }
    for (int64_t k = 0; k < columns; k++) to[k] = at(row, k);
}

bool make_weight(Weight& w, Memory& memory, int inputs, int outputs, int type) {
    w.inputs = inputs, w.outputs = outputs, w.type = type;
    w.panels = static_cast<int>(padded(outputs) / LANES);
    w.panel_bytes = int64_t{inputs} * ONE[type] * LANES;
    const int64_t numbers = (w.panels * w.panel_bytes + 63) / 64 * 64;
    const int64_t scales = type == MLK_INT8 ? int64_t{w.panels} * LANES * 4 : 0;
    if (!memory.allocate(numbers + scales, numbers >= (1 << 20))) return false;
    w.data = memory.as<char>();
    w.scale = scales ? reinterpret_cast<float*>(w.data + numbers) : nullptr;
    return true;
}

void pack(Weight& w, const Source& source, int64_t rows, int first, int step, float* scratch) {
    for (int64_t n = 0; n < rows; n++) {
        const int64_t panel = first + n / LANES * step, lane = n % LANES;
        char* data = w.data + panel * w.panel_bytes;
        source.row(n, scratch);
        float* floats = reinterpret_cast<float*>(data);
        if (w.type == MLK_FLOAT32) {
            for (int64_t k = 0; k < w.inputs; k++) floats[k * LANES + lane] = scratch[k];
        } else if (w.type == MLK_BFLOAT16) {
            uint16_t* halves = reinterpret_cast<uint16_t*>(data);
            const int64_t at = (lane & 7) * 2 + (lane >> 3);  // j beside j + 8, see load_weights
            for (int64_t k = 0; k < w.inputs; k++) halves[k * LANES + at] = to_bfloat16(scratch[k]);
        } else {
            int8_t* bytes = reinterpret_cast<int8_t*>(data);
            const float scale = scale_of(scratch, w.inputs);
            w.scale[panel * LANES + lane] = scale;
            for (int64_t k = 0; k < w.inputs; k++)
                bytes[k * LANES + lane] = scale == scale ? rounded(scratch[k] / scale) : 0;
        }
    }
}

void unpack_row(const Weight& w, int row, float* to) {
    const char* data = w.data + row / LANES * w.panel_bytes;
    const int64_t lane = row % LANES, at = (lane & 7) * 2 + (lane >> 3);
    for (int64_t k = 0; k < w.inputs; k++) {
        if (w.type == MLK_FLOAT32) to[k] = reinterpret_cast<const float*>(data)[k * LANES + lane];
        else if (w.type == MLK_BFLOAT16) to[k] = from_bfloat16(reinterpret_cast<const uint16_t*>(data)[k * LANES + at]);
        else to[k] = static_cast<float>(reinterpret_cast<const int8_t*>(data)[k * LANES + lane]) * w.scale[row];
    }
}

}  // namespace mlk
