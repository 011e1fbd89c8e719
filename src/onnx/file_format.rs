//! Recognizes ONNX models, and names the format of a file that is not a model.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::wire::{self, Encoded};

/// Whether a file is an ONNX model, judged by its outermost fields. The graph and the weights are
/// not read.
///
/// # Errors
/// If the file cannot be opened.
pub(crate) fn is_model(path: impl AsRef<Path>) -> io::Result<bool> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    Ok(wire::is_model(
        &mut OfFile {
            file: BufReader::new(file),
            position: 0,
        },
        length,
    ))
}

/// The bytes of a file. Skipped bytes are not read.
struct OfFile {
    file: BufReader<File>,
    position: u64,
}

impl Encoded for OfFile {
    fn position(&self) -> u64 {
        self.position
    }

    fn byte(&mut self) -> Option<u8> {
        let mut byte = [0];
        self.file.read_exact(&mut byte).ok()?;
        self.position += 1;
        Some(byte[0])
    }

    fn pass(&mut self, length: u64) -> bool {
        self.position += length;
        i64::try_from(length).is_ok_and(|length| self.file.seek_relative(length).is_ok())
    }
}

/// Names the format of a file by its first bytes, if it is a well-known one.
pub(super) fn looks_like(bytes: &[u8]) -> Option<&'static str> {
    const MAGICS: [(usize, &[u8], &str); 17] = [
        (
            0,
            b"version https://git-lfs",
            "a Git LFS pointer; fetch the file itself with `git lfs pull`",
        ),
        (
            0,
            b"PK\x03\x04",
            "a zip archive, such as a PyTorch checkpoint, a Keras model or an .npz file",
        ),
        (0, b"\x89HDF", "an HDF5 file, such as a Keras model"),
        (0, b"\x93NUMPY", "a NumPy array"),
        (0, b"\x1f\x8b", "a gzip archive"),
        (0, b"BZh", "a bzip2 archive"),
        (0, b"\xfd7zXZ", "an xz archive"),
        (0, b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
        (257, b"ustar", "a tar archive"),
        (
            0,
            b"\x80\x02",
            "a Python pickle, such as a PyTorch checkpoint",
        ),
        (0, b"\x80\x04", "a Python pickle"),
        (0, b"GGUF", "a GGUF model"),
        (4, b"TFL3", "a TensorFlow Lite model"),
        (
            4,
            b"ORTM",
            "a model in the format of ONNX Runtime, not in that of ONNX",
        ),
        (8, b"{\"", "a safetensors file"),
        (0, b"\x7fELF", "a program"),
        (0, b"%PDF", "a PDF document"),
    ];
    let known = MAGICS.iter().find(|(offset, magic, _)| {
        let rest = bytes.get(*offset..);
        rest.is_some_and(|rest| rest.starts_with(magic))
    });
    if let Some((.., name)) = known {
        return Some(name);
    }
    let head = &bytes[..bytes.len().min(512)];
    if head.iter().all(|&byte| byte == 0) {
        return Some("a file of zeros");
    }
    let is_text = head
        .iter()
        .all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~'));
    match head.trim_ascii_start().first() {
        _ if !is_text => None,
        Some(b'{' | b'[') => Some("a JSON file"),
        Some(b'<') => Some("an HTML or XML page"),
        _ => Some("a text file"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use prost::Message;

    use super::*;
    use crate::onnx::Model;
    use crate::onnx::proto::ModelProto;

    fn is_one(bytes: &[u8]) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, bytes).unwrap();
        is_model(&path).unwrap()
    }

    #[test]
    fn model_is_identified_by_its_required_parts() {
        let whole = fs::read("models/digits/un-dynamo.onnx").unwrap();
        assert!(is_one(&whole));
        for wrong in [
            &whole[1..],
            &whole[..whole.len() - 1],
            &[&whole, &b"\0"[..]].concat(),
            b"notes",
            b"",
        ] {
            assert!(!is_one(wrong), "{} bytes", wrong.len());
        }
        let proto = Model::open("models/digits/un-dynamo.onnx").unwrap().proto;
        for lacking in [
            ModelProto {
                graph: None,
                ..proto.clone()
            },
            ModelProto {
                ir_version: None,
                ..proto.clone()
            },
            ModelProto {
                opset_import: vec![],
                ..proto.clone()
            },
        ] {
            assert!(!is_one(&lacking.encode_to_vec()));
        }
        // The first field of a bare graph is not a field of a model.
        assert!(!is_one(&proto.graph.unwrap().encode_to_vec()));
    }

    #[test]
    fn known_file_signatures_are_named() {
        for (bytes, expected) in [
            (&b"PK\x03\x04rest"[..], "zip"),
            (
                b"version https://git-lfs.github.com/spec/v1\noid",
                "git lfs pull",
            ),
            (b"\x90\x01\0\0\0\0\0\0{\"a\":", "safetensors"),
            (b"<!doctype html>", "HTML"),
            (b"  {\"a\": 1}", "JSON"),
            (b"hello\n", "text"),
            (b"\0\0\0\0", "zeros"),
        ] {
            let name = looks_like(bytes).unwrap_or_default();
            assert!(name.contains(expected), "{bytes:?} looks like {name:?}");
        }
        assert_eq!(looks_like(b"\x08\x0a\x12\x07pytorch"), None);
    }

    #[test]
    fn a_model_is_told_from_a_manifest() {
        assert!(is_model("models/digits/un-dynamo.onnx").unwrap());
        assert!(!is_model("Cargo.toml").unwrap());
    }
}
