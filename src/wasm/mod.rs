//! The functions of the npm package `unfold-onnx`, for WebAssembly. `index.js` calls them.
//!
//! An instance of the module serves one call, and is dropped with all of its memory. So results are not freed here.

// JavaScript calls the functions by their names.
#![allow(unreachable_pub)]

mod calls;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null_mut, slice_from_raw_parts_mut};

use bytes::Bytes;

use crate::error::panic_message;
use crate::report::plain;
use calls::{CallError, CallResult};

/// The outcome of a call.
#[repr(C)]
#[derive(Debug)]
pub struct Reply {
    /// 1 if the call failed, and 0 otherwise.
    failed: u32,
    /// The report as JSON, or one line about the failure.
    text: *mut u8,
    /// The number of bytes of the text.
    text_length: usize,
    /// The folded model.
    model: *mut u8,
    /// The number of bytes of the model. 0 if no model is returned.
    model_length: usize,
}

/// Returns room for `length` bytes, which the caller fills and passes to another function. NULL if the memory is full.
#[unsafe(no_mangle)]
pub extern "C" fn wasm_allocate(length: usize) -> *mut u8 {
    let mut room = Vec::new();
    if room.try_reserve_exact(length).is_err() {
        return null_mut();
    }
    room.resize(length, 0);
    leaked(room)
}

/// Folds a model. `request` is JSON, a [`calls::Request`].
///
/// # Safety
/// Both buffers come from `wasm_allocate` with these lengths, and are not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wasm_fuse(
    request: *mut u8,
    request_length: usize,
    model: *mut u8,
    model_length: usize,
) -> *const Reply {
    // SAFETY: the caller guarantees it.
    let (request, model) = unsafe { (taken(request, request_length), taken(model, model_length)) };
    reply(|| calls::fuse(&request, model))
}

/// Proves that two models are the same function.
///
/// # Safety
/// Both buffers come from `wasm_allocate` with these lengths, and are not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wasm_prove(
    original: *mut u8,
    original_length: usize,
    other: *mut u8,
    other_length: usize,
) -> *const Reply {
    // SAFETY: the caller guarantees it.
    let (original, other) =
        unsafe { (taken(original, original_length), taken(other, other_length)) };
    reply(|| calls::prove(original, other))
}

/// Runs a call. A panic becomes a failure if the module is built with unwinding.
fn reply(call: impl FnOnce() -> Result<CallResult, CallError>) -> *const Reply {
    let ended = catch_unwind(AssertUnwindSafe(call));
    let ended = ended.unwrap_or_else(|panic| Err(CallError(panic_message(&*panic))));
    let (failed, text, model) = match ended {
        Ok(CallResult { report, model }) => (0, report, model.unwrap_or_default()),
        Err(CallError(line)) => (1, plain(&line), Bytes::new()),
    };
    Box::into_raw(Box::new(Reply {
        failed,
        text_length: text.len(),
        text: leaked(text.into_bytes()),
        model_length: model.len(),
        model: leaked(model.into()),
    }))
}

/// The address of bytes that are never freed.
fn leaked(bytes: Vec<u8>) -> *mut u8 {
    Box::into_raw(bytes.into_boxed_slice()).cast()
}

/// # Safety
/// The bytes come from [`leaked`], have this length, and are not used afterwards.
unsafe fn taken(bytes: *mut u8, length: usize) -> Bytes {
    // SAFETY: the caller guarantees it.
    let bytes = unsafe { Box::from_raw(slice_from_raw_parts_mut(bytes, length)) };
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer as JavaScript makes it.
    fn given(bytes: &[u8]) -> (*mut u8, usize) {
        let room = wasm_allocate(bytes.len());
        // SAFETY: the room has this length.
        unsafe { room.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        (room, bytes.len())
    }

    /// Whether a call failed, its text and its model.
    fn read(reply: *const Reply) -> (bool, String, Vec<u8>) {
        // SAFETY: the reply and its buffers come from `reply` and are read once.
        let (text, model, failed) = unsafe {
            let Reply {
                failed,
                text,
                text_length,
                model,
                model_length,
            } = reply.read();
            (
                taken(text, text_length),
                taken(model, model_length),
                failed == 1,
            )
        };
        (
            failed,
            String::from_utf8(text.into()).unwrap(),
            model.into(),
        )
    }

    #[test]
    fn folded_model_is_that_of_the_library_and_is_proved() {
        let bytes = std::fs::read("models/digits/un-dynamo.onnx").unwrap();
        let model = crate::onnx::Model::from_bytes(bytes.clone()).unwrap();
        let fused = crate::fuse(&model, &Default::default()).unwrap();
        let ((request, of_request), (model, of_model)) = (given(b"{}"), given(&bytes));
        // SAFETY: the buffers are not used afterwards.
        let reply = unsafe { wasm_fuse(request, of_request, model, of_model) };
        let (failed, report, result) = read(reply);
        assert!(
            !failed && result == fused.model.to_bytes().unwrap(),
            "{report}"
        );
        let ((original, of_original), (other, of_other)) = (given(&bytes), given(&result));
        // SAFETY: the buffers are not used afterwards.
        let reply = unsafe { wasm_prove(original, of_original, other, of_other) };
        let (failed, proof, _) = read(reply);
        assert!(
            !failed && proof.contains(r#""verdict":"proved""#),
            "{proof}"
        );
    }

    #[test]
    fn failure_is_one_line() {
        let ((request, of_request), (model, of_model)) = (given(b"{}"), given(b"\n\n"));
        // SAFETY: the buffers are not used afterwards.
        let reply = unsafe { wasm_fuse(request, of_request, model, of_model) };
        let (failed, line, model) = read(reply);
        assert!(
            failed && model.is_empty() && line.lines().count() == 1,
            "{line}"
        );
    }

    #[test]
    fn panic_is_a_failure() {
        let (failed, line, _) = read(reply(|| panic!("no {}", 7)));
        assert_eq!((failed, line.as_str()), (true, "a defect of unfold: no 7"));
    }
}
