// unfold: takes the normalizers of transformers out of ONNX models, where that can be done exactly.
//
// Written by cbindgen from src/capi/mod.rs.

#ifndef UNFOLD_H
#define UNFOLD_H

#include <stddef.h>
#include <stdint.h>

// The outcome of a call.
typedef enum unfold_status {
  // Success, even if nothing folds.
  UNFOLD_STATUS_OK = 0,
  // An argument is missing, or an option is invalid.
  UNFOLD_STATUS_BAD_ARGUMENT = 1,
  // The bytes are not an ONNX model, or an invalid one.
  UNFOLD_STATUS_BAD_MODEL = 2,
  // The external data of a tensor cannot be read.
  UNFOLD_STATUS_EXTERNAL_DATA = 3,
  // The result exceeds 2 GiB, the limit of a protobuf message.
  UNFOLD_STATUS_TOO_LARGE = 4,
  // A defect of unfold itself.
  UNFOLD_STATUS_INTERNAL = 5,
} unfold_status;

// Bytes from unfold. They belong to the caller until `unfold_free_bytes`.
typedef struct unfold_bytes {
  // The first byte; NULL for an empty buffer.
  uint8_t *data;
  // The number of bytes.
  size_t length;
} unfold_bytes;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Folds everything in a model that is exact to fold.
//
// `model` are the `length` bytes of an ONNX file. They are not changed, and not read after the call.
//
// `folder` is the folder of the model's external data, or NULL if it has none.
//
// `options` is NULL or a JSON object with any of
//   "skip":         ["NAME OR KIND", ...]  sites to leave unchanged; patterns with * and ?
//   "max_growth":   PERCENT                limit for growth by copies of shared weights; default: 5
//   "centre":       true                   centre residual streams for "portable" too
//   "merge_norms":  true                   remove normalizers that only others follow; equal up to their epsilon
//   "scale_stream": K                      scale residual streams by 2^-K, so that they fit into float16; 1 to 40
//   "target":       "ENGINE"               the engines for which the result is written; default: "cpu".
//                                          "cpu": a product with one open extent and its bias become one Gemm,
//                                          and streams are centred. "portable": LayerNormalization, MatMul and
//                                          attention stay. "onnxruntime": like "cpu", but intermediate values
//                                          with open shapes are not declared. "tract": like "cpu", but a layer
//                                          runs before the windows that it reads
//   "fix":          {"NAME": SIZE, ...}    sizes to which open dimensions of the inputs are fixed
//
// `result` receives the folded model, or the unchanged bytes if nothing folds. It is empty unless the status is
// `UNFOLD_STATUS_OK`. Weights in other files stay there.
//
// `error`, if it is not NULL, receives one line about the error, or NULL after success. The line belongs to the
// caller until `unfold_free_text`.
//
// # Safety
// `model` points to `length` bytes, or `length` is 0. `folder` and `options` are NULL or end with a NUL. `result`
// and `error`, if they are not NULL, can be written to. Their previous contents are not freed.
enum unfold_status unfold_fuse(const uint8_t *model,
                               size_t length,
                               const char *folder,
                               const char *options,
                               struct unfold_bytes *result,
                               char **error);

// Frees bytes from `unfold_fuse` and empties them. Does nothing for NULL and for empty bytes.
//
// # Safety
// `bytes` is NULL, or points to bytes from unfold.
void unfold_free_bytes(struct unfold_bytes *bytes);

// Frees a text from unfold. Does nothing for NULL.
//
// # Safety
// `text` is NULL, or a text from unfold that was not freed.
void unfold_free_text(char *text);

// The version of unfold, such as "0.1.0". It must not be freed.
const char *unfold_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UNFOLD_H */
