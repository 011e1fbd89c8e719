//! The C interface of unfold. Models are passed as bytes, and errors as text. `unfold.h` declares it.
//!
//! Arguments are only read during a call. Results belong to the caller, who frees them by the functions
//! below. No panic leaves a function. Every function may be called from any thread.

// C calls the functions by their names, and cbindgen declares the public ones.
#![allow(unreachable_pub)]

use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null_mut, slice_from_raw_parts_mut};
use std::slice;

use bytes::Bytes;

use crate::error::{Error, panic_message};
use crate::fuse::{FuseOptions, fuse};
use crate::onnx::Model;
use crate::provenance::FoldOptions;

/// The outcome of a call.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnfoldStatus {
    /// Success, even if nothing folds.
    Ok = 0,
    /// An argument is missing, or an option is invalid.
    BadArgument = 1,
    /// The bytes are not an ONNX model, or an invalid one.
    BadModel = 2,
    /// The external data of a tensor cannot be read.
    ExternalData = 3,
    /// The result exceeds 2 GiB, the limit of a protobuf message.
    TooLarge = 4,
    /// A defect of unfold itself.
    Internal = 5,
}

/// Bytes from unfold. They belong to the caller until `unfold_free_bytes`.
#[repr(C)]
#[derive(Debug)]
pub struct UnfoldBytes {
    /// The first byte; NULL for an empty buffer.
    pub data: *mut u8,
    /// The number of bytes.
    pub length: usize,
}

/// The status and the reason of a failed call.
struct Complaint(UnfoldStatus, String);

impl From<Error> for Complaint {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::ExternalData { .. } => UnfoldStatus::ExternalData,
            Error::TooLarge { .. } => UnfoldStatus::TooLarge,
            Error::Skip { .. }
            | Error::StopAfter { .. }
            | Error::NoPass { .. }
            | Error::Power { .. }
            | Error::Fix { .. } => UnfoldStatus::BadArgument,
            Error::Defect { .. } => UnfoldStatus::Internal,
            _ => UnfoldStatus::BadModel,
        };
        Complaint(status, error.to_string())
    }
}

fn bad_argument(what: impl Into<String>) -> Complaint {
    Complaint(UnfoldStatus::BadArgument, what.into())
}

/// Folds everything in a model that is exact to fold.
///
/// `model` are the `length` bytes of an ONNX file. They are not changed, and not read after the call.
///
/// `folder` is the folder of the model's external data, or NULL if it has none.
///
/// `options` is NULL or a JSON object with any of
///   "skip":         ["NAME OR KIND", ...]  sites to leave unchanged; patterns with * and ?
///   "max_growth":   PERCENT                limit for growth by copies of shared weights; default: 5
///   "centre":       true                   centre residual streams for "portable" too
///   "merge_norms":  true                   remove normalizers that only others follow; equal up to their epsilon
///   "scale_stream": K                      scale residual streams by 2^-K, so that they fit into float16; 1 to 40
///   "target":       "ENGINE"               the engines for which the result is written; default: "cpu".
///                                          "cpu": a product with one open extent and its bias become one Gemm,
///                                          and streams are centred. "portable": LayerNormalization, MatMul and
///                                          attention stay. "onnxruntime": like "cpu", but intermediate values
///                                          with open shapes are not declared. "tract": like "cpu", but a layer
///                                          runs before the windows that it reads
///   "fix":          {"NAME": SIZE, ...}    sizes to which open dimensions of the inputs are fixed
///
/// `result` receives the folded model, or the unchanged bytes if nothing folds. It is empty unless the status is
/// `UNFOLD_STATUS_OK`. Weights in other files stay there.
///
/// `error`, if it is not NULL, receives one line about the error, or NULL after success. The line belongs to the
/// caller until `unfold_free_text`.
///
/// # Safety
/// `model` points to `length` bytes, or `length` is 0. `folder` and `options` are NULL or end with a NUL. `result`
/// and `error`, if they are not NULL, can be written to. Their previous contents are not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unfold_fuse(
    model: *const u8,
    length: usize,
    folder: *const c_char,
    options: *const c_char,
    result: *mut UnfoldBytes,
    error: *mut *mut c_char,
) -> UnfoldStatus {
    let ended = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the caller guarantees it.
        let (model, folder, options) = unsafe {
            (
                bytes(model, length)?,
                text(folder, "folder")?,
                text(options, "options")?,
            )
        };
        if result.is_null() {
            return Err(bad_argument("result is NULL"));
        }
        fused(model, folder, options)
    }));
    let ended = ended
        .unwrap_or_else(|panic| Err(Complaint(UnfoldStatus::Internal, panic_message(&*panic))));
    let (status, bytes, line) = match ended {
        Ok(bytes) => (UnfoldStatus::Ok, owned(bytes), null_mut()),
        Err(Complaint(status, line)) => (status, owned(vec![]), line_of(&line)),
    };
    // SAFETY: both can be written to if they are not NULL.
    unsafe {
        if !result.is_null() {
            result.write(bytes);
        }
        match error.is_null() {
            false => error.write(line),
            true => unfold_free_text(line),
        }
    }
    status
}

/// Frees bytes from `unfold_fuse` and empties them. Does nothing for NULL and for empty bytes.
///
/// # Safety
/// `bytes` is NULL, or points to bytes from unfold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unfold_free_bytes(bytes: *mut UnfoldBytes) {
    // SAFETY: the pointer and the length come from `owned`, and no other code has the box.
    unsafe {
        let Some(bytes) = bytes.as_mut().filter(|bytes| !bytes.data.is_null()) else {
            return;
        };
        drop(Box::from_raw(slice_from_raw_parts_mut(
            bytes.data,
            bytes.length,
        )));
        *bytes = owned(vec![]);
    }
}

/// Frees a text from unfold. Does nothing for NULL.
///
/// # Safety
/// `text` is NULL, or a text from unfold that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unfold_free_text(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the text comes from `line_of`.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// The version of unfold, such as "0.1.0". It must not be freed.
#[unsafe(no_mangle)]
pub extern "C" fn unfold_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

fn fused(model: &[u8], folder: Option<&str>, options: Option<&str>) -> Result<Vec<u8>, Complaint> {
    let chosen = options.map_or(Ok(FoldOptions::default()), serde_json::from_str);
    let chosen = chosen.map_err(|error| bad_argument(format!("options: {error}")))?;
    let model = Bytes::copy_from_slice(model);
    let opened = match folder {
        Some(folder) => Model::from_bytes_in(model.clone(), folder)?,
        None => Model::from_bytes(model.clone())?,
    };
    let fused = fuse(&opened, &FuseOptions::from(chosen))?;
    let result = if fused.changed() {
        fused.model.to_bytes()?
    } else {
        model
    };
    Ok(result.into())
}

/// # Safety
/// `data` points to `length` bytes that outlive the result, or `length` is 0.
unsafe fn bytes<'b>(data: *const u8, length: usize) -> Result<&'b [u8], Complaint> {
    match (data.is_null(), isize::try_from(length)) {
        (_, Ok(0)) => Err(Complaint(
            UnfoldStatus::BadModel,
            "the model is empty".to_owned(),
        )),
        (true, _) => Err(bad_argument("model is NULL")),
        (_, Err(_)) => Err(bad_argument(format!("no model has {length} bytes"))),
        // SAFETY: the caller guarantees it, and no object is larger than `isize::MAX`.
        (false, Ok(_)) => Ok(unsafe { slice::from_raw_parts(data, length) }),
    }
}

/// # Safety
/// `text` is NULL, or ends with a NUL and outlives the result.
unsafe fn text<'t>(text: *const c_char, name: &str) -> Result<Option<&'t str>, Complaint> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller guarantees it.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map(Some)
        .map_err(|_| bad_argument(format!("{name} is not UTF-8")))
}

fn owned(bytes: Vec<u8>) -> UnfoldBytes {
    if bytes.is_empty() {
        return UnfoldBytes {
            data: null_mut(),
            length: 0,
        };
    }
    let length = bytes.len();
    UnfoldBytes {
        data: Box::into_raw(bytes.into_boxed_slice()).cast(),
        length,
    }
}

fn line_of(line: &str) -> *mut c_char {
    let line: String = line
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    CString::new(line).unwrap_or_default().into_raw()
}

#[cfg(test)]
mod tests {
    use std::ptr::null;

    use super::*;
    use crate::onnx::{DataPlace, SaveOptions};

    struct Call {
        status: UnfoldStatus,
        result: Vec<u8>,
        error: Option<String>,
    }

    fn call(model: &[u8], options: Option<&str>) -> Call {
        call_in(None, model, options)
    }

    fn call_in(folder: Option<&str>, model: &[u8], options: Option<&str>) -> Call {
        let [folder, options] =
            [folder, options].map(|text| text.map(|text| CString::new(text).unwrap()));
        let [folder, options] =
            [&folder, &options].map(|text| text.as_ref().map_or(null(), |text| text.as_ptr()));
        let mut result = UnfoldBytes {
            data: null_mut(),
            length: 7,
        };
        let mut error = null_mut();
        unsafe {
            let status = unfold_fuse(
                model.as_ptr(),
                model.len(),
                folder,
                options,
                &mut result,
                &mut error,
            );
            let bytes = match result.data.is_null() {
                true => vec![],
                false => slice::from_raw_parts(result.data, result.length).to_vec(),
            };
            assert_eq!(result.length, bytes.len());
            let line = text(error, "error").ok().unwrap().map(str::to_owned);
            unfold_free_bytes(&mut result);
            unfold_free_bytes(&mut result);
            unfold_free_text(error);
            Call {
                status,
                result: bytes,
                error: line,
            }
        }
    }

    fn digits() -> Vec<u8> {
        std::fs::read("models/digits/un-dynamo.onnx").unwrap()
    }

    #[test]
    fn unfold_fuse_returns_the_bytes_of_fuse() {
        let made = call(&digits(), None);
        let model = Model::from_bytes(digits()).unwrap();
        let expected = fuse(&model, &FuseOptions::default())
            .unwrap()
            .model
            .to_bytes()
            .unwrap();
        assert_eq!((made.status, made.error), (UnfoldStatus::Ok, None));
        assert!(made.result == expected && expected.len() < digits().len());
    }

    #[test]
    fn unfold_fuse_reads_json_options_and_rejects_invalid_ones() {
        let nothing = call(
            &digits(),
            Some(r#"{"skip": ["*", "constant", "duplicate"]}"#),
        );
        assert_eq!(nothing.status, UnfoldStatus::Ok);
        assert!(nothing.result == digits());
        for (options, said) in [
            ("{", "options: EOF"),
            (r#"{"skipp": []}"#, "unknown field `skipp`"),
            (r#"{"skip": ["["]}"#, "--skip `[`"),
            (
                r#"{"scale_stream": 41}"#,
                "residual streams are scaled by 2^-1 to 2^-40, and not by 2^-41",
            ),
        ] {
            let call = call(&digits(), Some(options));
            assert_eq!(call.status, UnfoldStatus::BadArgument, "{options}");
            assert!(call.error.unwrap().contains(said), "{options}");
            assert!(call.result.is_empty());
        }
    }

    #[test]
    fn unfold_fuse_reads_external_data_from_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        let options = SaveOptions {
            place: DataPlace::Beside,
            ..SaveOptions::default()
        };
        Model::from_bytes(digits())
            .unwrap()
            .save_as(&path, &options)
            .unwrap();
        let expected = fuse(&Model::open(&path).unwrap(), &FuseOptions::default())
            .unwrap()
            .model;
        let bytes = std::fs::read(&path).unwrap();
        let made = call_in(folder.path().to_str(), &bytes, None);
        assert_eq!((made.status, made.error), (UnfoldStatus::Ok, None));
        let made = Model::from_bytes_in(made.result, folder.path())
            .unwrap()
            .into_memory()
            .unwrap();
        assert!(made.proto.graph == expected.into_memory().unwrap().proto.graph);
    }

    #[test]
    fn unfold_fuse_rejects_invalid_models_in_one_line() {
        for bytes in [&b"\x89PNG\r\n\x1a\n"[..], &[], &digits()[..1000]] {
            let call = call(bytes, None);
            assert_eq!(call.status, UnfoldStatus::BadModel);
            assert!(
                call.error
                    .is_some_and(|line| !line.is_empty() && !line.contains('\n'))
            );
        }
    }

    #[test]
    fn null_pointers_are_bad_arguments() {
        let model = digits();
        let mut result = UnfoldBytes {
            data: null_mut(),
            length: 0,
        };
        unsafe {
            let status = unfold_fuse(null(), 5, null(), null(), &mut result, null_mut());
            assert_eq!(status, UnfoldStatus::BadArgument);
            let status = unfold_fuse(
                model.as_ptr(),
                usize::MAX,
                null(),
                null(),
                &mut result,
                null_mut(),
            );
            assert_eq!(status, UnfoldStatus::BadArgument);
            let status = unfold_fuse(
                model.as_ptr(),
                model.len(),
                null(),
                null(),
                null_mut(),
                null_mut(),
            );
            assert_eq!(status, UnfoldStatus::BadArgument);
            unfold_free_bytes(null_mut());
            unfold_free_text(null_mut());
            let version = CStr::from_ptr(unfold_version()).to_str().unwrap();
            assert_eq!(version, env!("CARGO_PKG_VERSION"));
        }
    }

    #[test]
    fn panic_is_reported_as_a_defect() {
        let panic = catch_unwind(|| panic!("no {}", 7)).unwrap_err();
        assert_eq!(panic_message(&*panic), "a defect of unfold: no 7");
    }
}
