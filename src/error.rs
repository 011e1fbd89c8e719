//! Errors. A refused fold is no error: it is a result, with its reason.

use std::io;
use std::path::PathBuf;

/// The result of anything in this library that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// The failure of a call of the library.
///
/// Every message is one line and names the file, the node or the tensor, and the cause.
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

    /// The file is something other than an ONNX model, or lacks a part that every model has.
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
        /// How many bytes the file has.
        length: usize,
    },

    /// The file is no valid protobuf, or holds text that is not UTF-8.
    #[error("{} cannot be decoded: {reason}", file.display())]
    Decode {
        /// The file.
        file: PathBuf,
        /// The flaw, and its place.
        reason: String,
    },

    /// The file holds a field that this version of ONNX does not define, and that would be lost.
    #[error(
        "{}: field {field} of {message} is not part of ONNX as this version knows it, \
         and would be lost on saving",
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
        /// The file that was to be written, or read.
        file: PathBuf,
        /// The size of the encoded model.
        bytes: usize,
    },

    /// The data that a tensor keeps in another file cannot be used.
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
        /// The line, from 1 on.
        line: usize,
        /// The character in the line, from 1 on.
        column: usize,
        /// The expected and the found token.
        reason: String,
    },

    /// The content of a tensor contradicts its shape or its type, or cannot be read as asked.
    #[error("tensor `{tensor}`: {reason}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// The flaw.
        reason: String,
    },

    /// An attribute of a node has another type than its operator defines.
    #[error("node `{node}`, attribute `{attribute}`: {reason}")]
    Attribute {
        /// The node, by its name, or by its operator and first output where it has none.
        node: String,
        /// The attribute.
        attribute: String,
        /// The flaw.
        reason: String,
    },

    /// The graph is not a graph that ONNX allows.
    #[error("{}: at `{node}`: {reason}", file.display())]
    Graph {
        /// The model.
        file: PathBuf,
        /// The node or the value.
        node: String,
        /// The flaw.
        reason: String,
    },

    /// The nodes of a graph depend on each other in a circle.
    #[error("{}: node `{node}` depends on its own output", file.display())]
    Cycle {
        /// The model.
        file: PathBuf,
        /// A node of the circle.
        node: String,
    },

    /// A plan that cannot be carried out: a defect of unfold; nothing is written.
    #[error("{}: at `{at}`: what was planned cannot be done, which is a defect of unfold: {reason}", file.display())]
    Defect {
        /// The model.
        file: PathBuf,
        /// The node or the value.
        at: String,
        /// The flaw.
        reason: String,
    },

    /// A certificate cannot be read, or does not say what a certificate says.
    #[error("{}: the certificate cannot be used: {reason}", file.display())]
    Certificate {
        /// The certificate.
        file: PathBuf,
        /// The flaw, and its tensor.
        reason: String,
    },

    /// How large the residual streams of a model become cannot be found out.
    #[error("{}: how large its residual streams become is not known: {reason}", file.display())]
    StreamMagnitude {
        /// The model.
        file: PathBuf,
        /// Why not.
        reason: String,
    },

    /// No stream is scaled by this power of two.
    #[error("residual streams are scaled by 2^-1 to 2^-{largest}, and not by 2^-{power}")]
    Power {
        /// The k of `2^-k`.
        power: u32,
        /// The largest that there is.
        largest: u32,
    },

    /// A dimension cannot have this size.
    #[error("--fix `{name}`: {reason}")]
    Fix {
        /// The name of the dimension.
        name: String,
        /// Why not.
        reason: String,
    },

    /// An invalid pattern of names to skip.
    #[error("--skip `{pattern}`: {reason}")]
    Skip {
        /// The pattern.
        pattern: String,
        /// The flaw.
        reason: String,
    },

    /// No pass has the name that `--stop-after` was given.
    #[error("--stop-after `{pass}`: {reason}")]
    StopAfter {
        /// The name that was given.
        pass: String,
        /// The flaw.
        reason: String,
    },
}
