/* Folds an ONNX file: fuse MODEL OUT [OPTIONS]
 *
 *   cargo rustc --release --lib --features capi --crate-type staticlib
 *   cc -Isrc/capi docs/examples/fuse.c target/release/libunfold.a -lpthread -ldl -lm -o target/fuse
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unfold.h"

/* Reads all bytes of a file. Returns NULL if the file cannot be read. */
static uint8_t *read_file(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return NULL;
    }
    uint8_t *bytes = NULL;
    size_t room = 0;
    *length = 0;
    do {
        room = room == 0 ? 1 << 16 : room * 2;
        uint8_t *more = realloc(bytes, room);
        if (more == NULL) {
            free(bytes);
            fclose(file);
            return NULL;
        }
        bytes = more;
        *length += fread(bytes + *length, 1, room - *length, file);
    } while (*length == room);
    int failed = ferror(file);
    fclose(file);
    if (failed) {
        free(bytes);
        return NULL;
    }
    return bytes;
}

int main(int argc, char **argv) {
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "fuse MODEL OUT [OPTIONS], of unfold %s\n", unfold_version());
        return 2;
    }
    size_t length = 0;
    uint8_t *model = read_file(argv[1], &length);
    if (model == NULL) {
        fprintf(stderr, "error: %s: %s\n", argv[1], strerror(errno));
        return 1;
    }

    unfold_bytes result;
    char *error;
    unfold_status status = unfold_fuse(model, length, NULL, argc > 3 ? argv[3] : NULL, &result, &error);
    free(model);
    if (status != UNFOLD_STATUS_OK) {
        fprintf(stderr, "error: %s: %s\n", argv[1], error);
        unfold_free_text(error);
        return 1;
    }

    printf("%zu bytes to %zu\n", length, result.length);
    FILE *out = fopen(argv[2], "wb");
    int failed = out == NULL || fwrite(result.data, 1, result.length, out) != result.length;
    failed |= out != NULL && fclose(out) != 0;
    unfold_free_bytes(&result);
    if (failed) {
        fprintf(stderr, "error: %s: %s\n", argv[2], strerror(errno));
        return 1;
    }
    return 0;
}
