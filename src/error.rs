//! Errors of the library. A refused fold is not an error, but a result with a reason.

use std::io;
use std::path::PathBuf;

/// The result of every function in this library that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// The failure of a call of the library.
///
/// Every message is one line. It contains the file, the node or the tensor, and the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused to read or write a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The file is not an ONNX model, or lacks a part that every model has.
    #[error("{} is not an ONNX model: {reason}", path.display())]
    NotOnnx {
        /// The file.
        path: PathBuf,
        /// The format that it resembles, or the missing part.
        reason: String,
    },

    /// The file ends in the middle of a message.
    #[error("{} is truncated: it ends at byte {length}, inside {message}", file.display())]
    Truncated {
        /// The file.
        file: PathBuf,
        /// The path of the message that is cut, such as `graph.node[3]`.
        message: String,
        /// The number of bytes of the file.
        length: usize,
    },

    /// The file is not valid protobuf, or has a string that is not UTF-8.
    #[error("{} cannot be decoded: {reason}", file.display())]
    Decode {
        /// The file.
        file: PathBuf,
        /// The flaw and its position.
        reason: String,
    },

    /// The file holds a field that this version of ONNX does not define and that would be lost on
    /// saving.
    #[error(
        "{}: field {field} of {message} is unknown to this version of unfold, and would \
         be lost on saving",
        file.display()
    )]
    UnknownField {
        /// The file.
        file: PathBuf,
        /// The path of the message that holds the field, such as `graph.node[3]`.
        message: String,
        /// The number of the field.
        field: u32,
    },

    /// The model does not fit into one protobuf file.
    #[error(
        "{}: the model takes {bytes} bytes, and a protobuf file holds at most 2 GiB; \
         save its weights as external data",
        file.display()
    )]
    TooLarge {
        /// The file to write or to read.
        file: PathBuf,
        /// The size of the encoded model.
        bytes: usize,
    },

    /// The external data of a tensor cannot be used.
    #[error("{}: the external data of tensor `{tensor}`: {reason}", file.display())]
    ExternalData {
        /// The model.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The flaw of its data.
        reason: String,
    },

    /// A text does not follow ONNX's textual syntax.
    #[error("line {line}, column {column}: {reason}")]
    Text {
        /// The line, counted from 1.
        line: usize,
        /// The character within the line, counted from 1.
        column: usize,
        /// The expected and the found token.
        reason: String,
    },

    /// The contents of a tensor contradict its shape or its type, or cannot be read in the
    /// requested form.
    #[error("tensor `{tensor}`: {reason}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// The flaw.
        reason: String,
    },

    /// An attribute of a node has a type other than its operator defines.
    #[error("node `{node}`, attribute `{attribute}`: {reason}")]
    Attribute {
        /// The name of the node, or its operator and first output if it has none.
        node: String,
        /// The attribute.
        attribute: String,
        /// The flaw.
        reason: String,
    },

    /// The graph is invalid in ONNX.
    #[error("{}: at `{node}`: {reason}", file.display())]
    Graph {
        /// The model.
        file: PathBuf,
        /// The node or the value.
        node: String,
        /// The flaw.
        reason: String,
    },

    /// The nodes of a graph form a cycle.
    #[error("{}: node `{node}` depends on its own output", file.display())]
    Cycle {
        /// The model.
        file: PathBuf,
        /// A node of the cycle.
        node: String,
    },

    /// A plan cannot be applied because of a defect of unfold. No file is written.
    #[error("{}: at `{at}`: the plan cannot be carried out, which is a defect of unfold: {reason}", file.display())]
    Defect {
        /// The model.
        file: PathBuf,
        /// The node or the value.
        at: String,
        /// The flaw.
        reason: String,
    },

    /// A certificate cannot be read, or has invalid contents.
    #[error("{}: the certificate cannot be used: {reason}", file.display())]
    Certificate {
        /// The certificate.
        file: PathBuf,
        /// The flaw, and the tensor that has it.
        reason: String,
    },

    /// The magnitude of a model's residual streams could not be measured.
    #[error("{}: the magnitude of its residual streams is not known: {reason}", file.display())]
    StreamMagnitude {
        /// The model.
        file: PathBuf,
        /// The reason.
        reason: String,
    },

    /// Streams cannot be scaled by this power of two.
    #[error("residual streams are scaled by 2^-1 to 2^-{largest}, and not by 2^-{power}")]
    Power {
        /// The k of `2^-k`.
        power: u32,
        /// The largest allowed k.
        largest: u32,
    },

    /// A dimension cannot be fixed to this size.
    #[error("--fix `{name}`: {reason}")]
    Fix {
        /// The name of the dimension.
        name: String,
        /// The reason.
        reason: String,
    },

    /// A pattern of names to skip is invalid.
    #[error("--skip `{pattern}`: {reason}")]
    Skip {
        /// The pattern.
        pattern: String,
        /// The flaw.
        reason: String,
    },

    /// The pass that was to run alone does not exist.
    #[error("no pass is called `{pass}`; `unfold passes` lists them")]
    NoPass {
        /// The name that was given.
        pass: String,
    },

    /// No pass has the name that was given to `--stop-after`.
    #[error("--stop-after `{pass}`: {reason}")]
    StopAfter {
        /// The name that was given.
        pass: String,
        /// The flaw.
        reason: String,
    },
}

/// The message of a panic that ended a call from another language.
#[cfg(any(test, feature = "capi", feature = "wasm"))]
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("something failed");
    format!("a defect of unfold: {said}")
}
