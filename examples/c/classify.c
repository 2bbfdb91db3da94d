/* Classifies an image with a model that lowbit exported, in C: no Python, no Paddle.
 *
 *     python examples/c/build.py inference.onnx        compiles and runs it
 *     ./classify inference.onnx image.f32 1 3 224 224
 *
 * image.f32 holds the prepared images as float32, [N, C, H, W]: in Python, images.tofile("image.f32").
 */
#include "lowbit_runtime.h"

#include <stdio.h>
#include <stdlib.h>

static int fail(const char* what) {
    fprintf(stderr, "%s: %s\n", what, lowbit_runtime_error());
    return 1;
}

static size_t product(const int64_t* dims, int rank) {
    size_t count = 1;
    for (int i = 0; i < rank; i++) count *= (size_t)dims[i];
    return count;
}

int main(int argc, char** argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: classify MODEL.onnx IMAGES.f32 N C H W\n");
        return 2;
    }
    int64_t dims[8], out_dims[8];
    const int rank = argc - 3;
    lowbit_engine* engine = NULL;
    lowbit_plan* plan = NULL;
    if (lowbit_engine_open(argv[1], 1, &engine)) return fail(argv[1]);
    if (lowbit_engine_inputs(engine) != 1 || lowbit_engine_input_type(engine, 0) != LOWBIT_FLOAT32 ||
        lowbit_engine_input_dims(engine, 0, NULL) != rank) {
        fprintf(stderr, "%s does not take one tensor of %d dimensions\n", argv[1], rank);
        return 1;
    }
    for (int i = 0; i < rank; i++) dims[i] = strtoll(argv[3 + i], NULL, 10);
    if (lowbit_plan_make(engine, dims, NULL, 0, 0, &plan)) return fail("planning");
    const int out_rank = lowbit_plan_output_dims(plan, 0, out_dims);
    const size_t in_count = product(dims, rank), out_count = product(out_dims, out_rank);
    float* images = malloc(in_count * sizeof(float));
    float* logits = malloc(out_count * sizeof(float));
    FILE* file = fopen(argv[2], "rb");
    if (!images || !logits || !file || fread(images, sizeof(float), in_count, file) != in_count) {
        fprintf(stderr, "%s does not hold %zu floats\n", argv[2], in_count);
        return 1;
    }
    fclose(file);
    const void* inputs[] = {images};
    void* outputs[] = {logits};
    if (lowbit_plan_run(plan, inputs, outputs)) return fail("running");
    const size_t classes = out_count / (size_t)dims[0];
    for (int64_t n = 0; n < dims[0]; n++) {
        const float* row = logits + (size_t)n * classes;
        size_t best = 0;
        for (size_t i = 1; i < classes; i++) best = row[i] > row[best] ? i : best;
        printf("image %lld: class %zu, %.9g\n", (long long)n, best, row[best]);
    }
    free(images);
    free(logits);
    lowbit_plan_free(plan);
    lowbit_engine_close(engine);
    return 0;
}
