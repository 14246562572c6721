// Replays a file of tensors and steps with the library that it is linked to, and writes all logits and tokens: the same
// program for every processor, so that another machine's bits can be compared without Python there.
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "minilab_kernels.h"

namespace {

FILE* input;

void take(void* to, size_t bytes) {
    if (fread(to, 1, bytes, input) != bytes) {
        fprintf(stderr, "the file is cut short\n");
        exit(2);
    }
}
template <class T> T number() {
    T value;
    take(&value, sizeof value);
    return value;
}
void* block(int64_t bytes) {
    void* data = malloc(static_cast<size_t>(bytes) + 1);
    take(data, static_cast<size_t>(bytes));
    return data;
}
void check(int32_t status) {
    if (status) {
        fprintf(stderr, "%s\n", mlk_error());
        exit(1);
    }
}

}  // namespace

// Logprobs of every output: of the chosen ones, of given ones, or none.
struct Listing {
    static constexpr int MOST = 20;
    mlk_listing of_step;
    int32_t *counts, *judged, *ids;
    float *of_tokens, *of_ids;

    Listing(int rows, const int32_t* given) {
        counts = static_cast<int32_t*>(malloc(sizeof(int32_t) * rows));
        judged = static_cast<int32_t*>(malloc(sizeof(int32_t) * rows));
        ids = static_cast<int32_t*>(malloc(sizeof(int32_t) * rows * MOST));
        of_tokens = static_cast<float*>(malloc(sizeof(float) * rows));
        of_ids = static_cast<float*>(malloc(sizeof(float) * rows * MOST));
        for (int r = 0; r < rows; r++) counts[r] = r % (MOST + 2) - 1, judged[r] = r % 3 ? given[r] : -1;
        of_step = {MOST, counts, judged, of_tokens, ids, of_ids};
    }
    ~Listing() {
        for (void* used : {static_cast<void*>(counts), static_cast<void*>(judged), static_cast<void*>(ids),
                           static_cast<void*>(of_tokens), static_cast<void*>(of_ids)})
            free(used);
    }
    Listing(const Listing&) = delete;
    Listing& operator=(const Listing&) = delete;
};

int main(int count, char** arguments) {
    if (count != 4 || !(input = fopen(arguments[1], "rb"))) return 2;
    FILE* output = fopen(arguments[2], "wb");
    const mlk_shape shape = number<mlk_shape>();
    const int32_t type = number<int32_t>(), slots = number<int32_t>();
    mlk_model* model = mlk_create(&shape, type, slots, atoi(arguments[3]));
    if (!model) check(-1);
    const int32_t ropes = number<int32_t>();
    for (int32_t index = 0; index < ropes; index++) {
        mlk_rope rope = number<mlk_rope>();
        const int32_t count = number<int32_t>();
        float* divisors = static_cast<float*>(block(count * int64_t{4}));
        rope.divisors = divisors;
        check(mlk_set_rope(model, index, &rope));
        free(divisors);
    }
    for (int32_t layer = 0; layer < shape.layers; layer++) {
        const int32_t window = number<int32_t>(), rope = number<int32_t>();
        check(mlk_set_layer(model, layer, window, rope));
    }
    for (int32_t n = number<int32_t>(); n--;) {
        const int32_t tensor = number<int32_t>(), layer = number<int32_t>();
        const int64_t rows = number<int64_t>(), columns = number<int64_t>();
        void* data = block(rows * columns * 4);
        check(mlk_set(model, tensor, layer, MLK_FLOAT32, data, rows, columns));
        free(data);
    }
    for (int32_t n = number<int32_t>(); n--;) {
        mlk_step step = {};
        step.rows = step.outputs = number<int32_t>();
        void* columns[3];  // ids, slots, positions
        for (void*& column : columns) column = block(step.rows * 4);
        step.ids = static_cast<int32_t*>(columns[0]);
        step.slots = static_cast<int32_t*>(columns[1]);
        step.positions = static_cast<int32_t*>(columns[2]);
        int32_t* rows = static_cast<int32_t*>(malloc(step.rows * 4));
        mlk_sampler** samplers = static_cast<mlk_sampler**>(malloc(step.rows * sizeof(mlk_sampler*)));
        for (int r = 0; r < step.rows; r++) {
            rows[r] = r;
            mlk_settings settings = {};
            settings.vocab = shape.vocab, settings.allowed = -1, settings.repetition_penalty = 1;
            settings.seed = static_cast<uint64_t>(n * 1000 + r), settings.temperature = 0.9f;
            settings.top_k = r % 2 ? 20 : 0, settings.top_p = r % 3 ? 0.9f : 1.f;
            samplers[r] = mlk_sampler_create(&settings);
        }
        step.output_rows = rows, step.samplers = samplers;
        step.logits = static_cast<float*>(malloc(sizeof(float) * step.rows * shape.vocab));
        step.tokens = static_cast<int32_t*>(malloc(step.rows * 4));
        Listing listing(step.rows, step.ids);
        step.listing = &listing.of_step;
        check(mlk_run(model, &step));
        fwrite(step.logits, 4, static_cast<size_t>(step.rows) * shape.vocab, output);
        fwrite(step.tokens, 4, step.rows, output);
        for (int r = 0; r < step.rows; r++) mlk_sampler_destroy(samplers[r]);
        for (void* used : {columns[0], columns[1], columns[2], static_cast<void*>(rows), static_cast<void*>(samplers),
                           static_cast<void*>(step.logits), static_cast<void*>(step.tokens)})
            free(used);
    }
    mlk_destroy(model);
    fclose(output);
    printf("%s\n", mlk_backend());
}
