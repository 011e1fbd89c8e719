// unfold: takes the normalizers of transformers out of ONNX models, where that can be done exactly.
//
// Written by cbindgen from src/capi/mod.rs.

#ifndef UNFOLD_H
#define UNFOLD_H

#include <stddef.h>
#include <stdint.h>

// How a call ended.
typedef enum unfold_status {
  // Done; also where there was nothing to fold.
  UNFOLD_STATUS_OK = 0,
  // An argument is missing, or an option means nothing.
  UNFOLD_STATUS_BAD_ARGUMENT = 1,
  // The bytes are no ONNX model, or an invalid one.
  UNFOLD_STATUS_BAD_MODEL = 2,
  // The data that a tensor keeps outside of the model cannot be had.
  UNFOLD_STATUS_EXTERNAL_DATA = 3,
  // The result does not fit into the 2 GiB that a protobuf message may have.
  UNFOLD_STATUS_TOO_LARGE = 4,
  // A defect of unfold itself.
  UNFOLD_STATUS_INTERNAL = 5,
} unfold_status;

// Bytes that unfold made. They belong to whoever was given them, until `unfold_free_bytes`.
typedef struct unfold_bytes {
  // The first byte; NULL for an empty buffer.
  uint8_t *data;
  // How many there are.
  size_t length;
} unfold_bytes;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Folds everything in a model that is exact to fold.
//
// `model` are the `length` bytes of an ONNX file. They are not changed, and not read after the call.
//
// `folder` is where the model has its external data, or NULL where it has none.
//
// `options` is NULL or a JSON object with any of
//   "skip":         ["NAME OR KIND", ...]  sites that are left as they are; patterns with * and ?
//   "max_growth":   PERCENT                how much copies of shared weights may add; 5 if nothing is said
//   "centre":       true                   residual streams without a mean for "portable" too
//   "merge_norms":  true                   no normalizers that others follow, which is equal up to their epsilon
//   "scale_stream": K                      residual streams by 2^-K, so that float16 holds them; 1 to 40
//   "target":       "ENGINE"               the engines that the result is for. "cpu" if nothing is said: a
//                                          product of one open extent and its bias are one Gemm, and streams
//                                          are centred. "portable": LayerNormalization, MatMul and attention
//                                          stay as they are. "onnxruntime": as "cpu", and open shapes of values
//                                          within are not declared. "tract": as "cpu", and a layer comes before
//                                          the windows that it reads
//   "fix":          {"NAME": SIZE, ...}    sizes of open dimensions of the inputs, which the result has as numbers
//
// `result` receives the folded model, the same bytes where there was nothing to fold; unless the status is
// `UNFOLD_STATUS_OK` it is empty. Weights in other files stay there.
//
// `error`, where it is not NULL, receives one line that says what is wrong, or NULL if nothing is. It belongs to the
// caller, until `unfold_free_text`.
//
// # Safety
// `model` has `length` bytes, or `length` is 0. `folder` and `options` are NULL or end with a NUL. `result`, and
// `error` if it is not NULL, are places to write to; what is there before is not freed.
enum unfold_status unfold_fuse(const uint8_t *model,
                               size_t length,
                               const char *folder,
                               const char *options,
                               struct unfold_bytes *result,
                               char **error);

// Frees what `unfold_fuse` made, and leaves the bytes empty; does nothing to bytes that are empty, and to NULL.
//
// # Safety
// `bytes` is NULL, or bytes as unfold made them.
void unfold_free_bytes(struct unfold_bytes *bytes);

// Frees a text that unfold made; does nothing to NULL.
//
// # Safety
// `text` is NULL, or a text as unfold made it, which was not freed.
void unfold_free_text(char *text);

// The version of unfold, such as "0.1.0". It is not to be freed.
const char *unfold_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UNFOLD_H */
