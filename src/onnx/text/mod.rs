//! Models in ONNX's textual syntax.
//!
//! ```text
//! <ir_version: 8, opset_import: ["" : 17]>
//! main (float[batch,4] x) => (float[batch,4] y)
//!    <float[4] w = {1, 2, 3, 4}>
//! {
//!    y = Mul (x, w)
//! }
//! ```
//!
//! The syntax is that of `docs/Syntax.md` of the ONNX project. The `onnx` package prints and parses
//! it too. The syntax cannot express doc strings of nodes, metadata of nodes and graphs, sparse
//! tensors, quantization annotations, training graphs and devices, so the text lacks these.
//! float16, bfloat16 and floats of 8 bits are written as their bits. Elements smaller than a byte
//! are written as the bytes in which they are packed.

mod lexer;
mod parse;
mod print;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use print::PrintedElements;

use crate::error::{Error, Result};
use crate::onnx::Model;
use crate::onnx::element::DataType;
use crate::onnx::external_data::Externals;
use crate::onnx::proto::DataLocation;

impl Model {
    /// Reads a model from ONNX's textual syntax.
    ///
    /// ```
    /// use unfold::onnx::Model;
    /// use unfold::onnx::PrintedElements;
    ///
    /// let model = Model::from_text(r#"
    ///     <ir_version: 8, opset_import: ["" : 17]>
    ///     main (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul (x, w) }
    /// "#)?;
    /// assert_eq!(model.graph().node[0].op_type(), "Mul");
    /// assert_eq!(Model::from_text(&model.to_text(PrintedElements::All)?)?.proto, model.proto);
    /// # Ok::<(), unfold::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Text`] with line and column, if the text does not follow the syntax.
    pub fn from_text(text: &str) -> Result<Self> {
        parse::model(text).map(Self::from_proto)
    }

    /// Writes the model in ONNX's textual syntax. Doc strings and metadata of nodes, sparse
    /// tensors, quantization annotations, training graphs and devices are lost, because the syntax
    /// cannot express them.
    ///
    /// # Errors
    /// If the elements of a tensor cannot be read.
    pub fn to_text(&self, elements: PrintedElements) -> Result<String> {
        print::model(self, elements)
    }
}

/// Whether the name of a file has the extension of models in text form.
pub(super) fn is_text(path: &Path) -> bool {
    path.extension() == Some(OsStr::new("onnxtxt"))
}

/// Reads a model from a text file. `others` are additional folders of its external data.
pub(super) fn open(path: &Path, others: Vec<PathBuf>) -> Result<Model> {
    let text = fs::read_to_string(path).map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })?;
    let proto = parse::model(&text).map_err(|error| Error::NotOnnx {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    let mut model = Model::from_proto(proto);
    let initializers = &model.graph().initializer;
    model.external = initializers
        .iter()
        .any(|tensor| tensor.data_location() == DataLocation::External);
    model.externals = Externals::reaching(path, others);
    model.path = Some(path.to_owned());
    Ok(model)
}

/// Whether a name is an identifier, so that it needs no quotes.
fn is_identifier(name: &str) -> bool {
    let mut characters = name.chars();
    let begins = characters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == '_');
    begins && characters.all(|next| next.is_ascii_alphanumeric() || next == '_')
}

/// Whether a word begins a type, so that a value with this name needs quotes.
fn is_type_name(word: &str) -> bool {
    let is_composite = matches!(
        word,
        "seq" | "map" | "optional" | "sparse_tensor" | "opaque"
    );
    is_composite || DataType::from_str(word).is_ok()
}

/// Whether a word is a special float, so that a graph with this name needs quotes.
fn is_special_float(word: &str) -> bool {
    ["inf", "infinity", "nan"].contains(&word.to_ascii_lowercase().as_str())
}

/// Tests that a printed model is parsed to the same model.
#[cfg(test)]
mod tests {
    use super::*;

    fn survives(text: &str) {
        let model = Model::from_text(text).unwrap();
        let printed = model.to_text(PrintedElements::All).unwrap();
        let again = Model::from_text(&printed).unwrap();
        assert_eq!(again.proto, model.proto, "{printed}");
        assert_eq!(again.to_text(PrintedElements::All).unwrap(), printed);
    }

    #[test]
    fn model_survives_printing_and_parsing() {
        survives(
            r#"<
                ir_version: 10, opset_import: ["" : 21, "com.example" : 1], producer_name: "a \"b\" \\",
                model_version: 3, metadata_props: ["key": "value"]
            >
            "main graph" (float[batch,"a b",?,4] x, int64[] any, bool flag, seq(float[2]) parts = {},
                          optional(map(string, float16[1])) m)
                => (float y, "opaque.1" z)
            <float[2] w = {1.5, -inf}, float16[2] half = {15360, 48128}, string[2] s = {"a", "b\"c"},
             int64[0] empty = {}, uint8[2] bytes = {1, 255}, double[1] d = {1e-300}, float[batch] h>
            {
                # A comment.
                [first] h, "" = com.example.Op:two <alpha: float = 2, axes: ints = [0, -1], none: strings = [],
                    mode = "edge", t: tensor = int32[2] name {3, 4}, tp: type_proto = float[2,n]> (x, "", w)
                y = If (flag) <then_branch: graph = then () => (float a) { a = Identity (h) },
                    else_branch: graph = otherwise () => (float b) { b = Neg (h) }>
            }
            <domain: "com.example", overload: "two", opset_import: ["" : 21]>
            Op <axes, alpha: float = 1.0> (a, b, c) => (d, e) { d = Scale <alpha: float = @alpha> (a) e = Neg (d) }
            "#
            .replace(" = {},", ",")
            .replace("float y, \"opaque.1\" z", "float y")
            .as_str(),
        );
    }

    #[test]
    fn elements_beyond_the_limit_are_omitted() {
        let text = r#"<ir_version: 8, opset_import: ["" : 17]>
            g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}> { y = Mul (x, w) }"#;
        let printed = Model::from_text(text)
            .unwrap()
            .to_text(PrintedElements::AtMost(2))
            .unwrap();
        assert!(printed.contains("float[3] w = ..."), "{printed}");
    }

    #[test]
    fn errors_name_line_and_column() {
        for (text, expected) in [
            (
                "<ir_version: 8>\ng (float x => (float y) {}",
                "line 2, column 13: expected `{`, found `>`",
            ),
            (
                "g () => () { y = Add <axis: int = 1.5> () }",
                "line 1, column 35: expected an integer, found `1.5`",
            ),
            (
                "g () => () <float[2] w = {1}> {}",
                "line 1, column 29: `w` has 1 element, and its shape has 2",
            ),
            (
                "g () => () { y = Add (x) ",
                "line 1, column 26: expected `}`, found the end",
            ),
            (
                "<colour: 3> g () => () {}",
                "line 1, column 9: unknown field `colour`",
            ),
        ] {
            assert_eq!(Model::from_text(text).unwrap_err().to_string(), expected);
        }
    }
}
