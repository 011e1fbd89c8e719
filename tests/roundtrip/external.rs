//! External data: how it is read, and which locations are refused.

use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use bytes::Bytes;
use ndarray::arr1;
use prost::Message;
use tempfile::TempDir;
use unfold::onnx::proto::TensorProto;
use unfold::onnx::{DataType, Model, Resolver, tensor};

use crate::{external, floats, raw, with_initializers};

/// A folder with `model.onnx`, whose only tensor has the given entries of external data, and
/// `weights.bin` with the floats 0 to 99.
fn folder(dims: &[i64], entries: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("weights.bin"),
        floats((0..100_u8).map(f32::from)),
    )
    .unwrap();
    write(folder.path(), external("w", dims, entries));
    folder
}

fn write(folder: &Path, tensor: TensorProto) {
    let bytes = with_initializers(vec![tensor]).encode_to_vec();
    fs::write(folder.join("model.onnx"), bytes).unwrap();
}

fn read(folder: &Path) -> unfold::error::Result<Vec<f64>> {
    let model = Model::open(folder.join("model.onnx")).unwrap();
    assert!(model.external);
    let values = tensor::read_f64(&model.graph().initializer[0], model.externals())?;
    Ok(values.into_iter().collect())
}

fn refused(folder: &Path, reason: &str) {
    let message = read(folder).expect_err(reason).to_string();
    let names = message.contains("model.onnx") && message.contains("`w`");
    assert!(
        names && message.contains(reason) && !message.contains('\n'),
        "{message}"
    );
}

#[test]
fn external_tensors_are_read_at_their_entries() {
    for (dims, entries, expected) in [
        (&[2][..], &[("location", "weights.bin")][..], vec![0.0, 1.0]),
        (
            &[2],
            &[("location", "./weights.bin"), ("offset", "8")],
            vec![2.0, 3.0],
        ),
        (
            &[1],
            &[
                ("location", "weights.bin"),
                ("offset", "396"),
                ("length", "4"),
            ],
            vec![99.0],
        ),
        (
            &[],
            &[
                ("length", "4"),
                ("offset", "20"),
                ("location", "weights.bin"),
            ],
            vec![5.0],
        ),
        (
            &[0],
            &[
                ("location", "weights.bin"),
                ("offset", "400"),
                ("length", "0"),
            ],
            vec![],
        ),
        (
            &[1],
            &[
                ("location", "weights.bin"),
                ("checksum", "?"),
                ("other", "?"),
            ],
            vec![0.0],
        ),
    ] {
        assert_eq!(
            read(folder(dims, entries).path()).unwrap(),
            expected,
            "{entries:?}"
        );
    }
}

#[test]
fn data_in_a_subfolder_is_read() {
    let folder = folder(&[1], &[("location", "data/w")]);
    fs::create_dir(folder.path().join("data")).unwrap();
    fs::write(folder.path().join("data/w"), floats([3.5])).unwrap();
    assert_eq!(read(folder.path()).unwrap(), [3.5]);
}

#[test]
fn bare_file_name_finds_its_data() {
    let parent = Path::new("model.onnx");
    let externals = unfold::onnx::Externals::beside(parent);
    let tensor = external("w", &[1], &[("location", "Cargo.toml")]);
    assert_eq!(
        tensor::raw(&tensor, &externals).unwrap(),
        &fs::read("Cargo.toml").unwrap()[..4]
    );
}

#[test]
fn locations_outside_the_folder_are_refused() {
    for location in [
        "../weights.bin",
        "data/../../weights.bin",
        "data/../weights.bin",
        "/etc/hosts",
        "..",
        "",
    ] {
        let folder = folder(&[1], &[("location", location)]);
        refused(folder.path(), "no path inside the model's folder");
    }
}

#[test]
#[cfg(unix)]
fn symlinks_out_of_the_folder_are_refused() {
    use std::os::unix::fs::symlink;
    let outside = folder(&[1], &[]);
    let folder = folder(&[1], &[("location", "link")]);
    symlink(
        outside.path().join("weights.bin"),
        folder.path().join("link"),
    )
    .unwrap();
    refused(folder.path(), "a link that leaves the model's folder");
    fs::remove_file(folder.path().join("link")).unwrap();
    symlink(outside.path(), folder.path().join("sub")).unwrap();
    write(
        folder.path(),
        external("w", &[1], &[("location", "sub/weights.bin")]),
    );
    refused(folder.path(), "a link that leaves the model's folder");
    symlink("weights.bin", folder.path().join("link")).unwrap();
    write(folder.path(), external("w", &[1], &[("location", "link")]));
    assert_eq!(read(folder.path()).unwrap(), [0.0]);
}

#[test]
fn missing_or_irregular_data_files_are_refused() {
    refused(
        folder(&[1], &[("location", "missing")]).path(),
        "`missing` cannot be read",
    );
    refused(folder(&[1], &[("location", ".")]).path(), "no regular file");
    refused(folder(&[1], &[]).path(), "it has no location");
}

#[test]
fn offsets_past_the_end_are_refused() {
    let at = |dims: &[i64], offset: &str, length: &str| {
        let entries = [
            ("location", "weights.bin"),
            ("offset", offset),
            ("length", length),
        ];
        folder(dims, &entries)
    };
    refused(at(&[1], "401", "4").path(), "past the end");
    refused(at(&[2], "396", "8").path(), "takes 8 bytes");
    refused(at(&[1], "18446744073709551615", "4").path(), "past the end");
    refused(
        at(&[1 << 40], "0", "4398046511104").path(),
        "takes 4398046511104 bytes",
    );
    refused(
        folder(&[101], &[("location", "weights.bin")]).path(),
        "takes 404 bytes",
    );
}

#[test]
fn lengths_other_than_the_tensor_are_refused() {
    for length in ["0", "4", "12", "400"] {
        let entries = [("location", "weights.bin"), ("length", length)];
        refused(
            folder(&[2], &entries).path(),
            "its shape and type take 8 bytes",
        );
    }
}

#[test]
fn invalid_external_entries_are_refused() {
    for (key, value) in [
        ("offset", "-4"),
        ("offset", "x"),
        ("offset", ""),
        ("offset", "1e3"),
        ("length", "-8"),
        ("length", "99999999999999999999999"),
    ] {
        let folder = folder(&[2], &[("location", "weights.bin"), (key, value)]);
        refused(folder.path(), &format!("its {key} `{value}` is no size"));
    }
    let twice = [("location", "weights.bin"), ("location", "other")];
    refused(folder(&[2], &twice).path(), "two entries `location`");
}

#[test]
fn overflowing_external_shapes_are_refused() {
    for (dims, reason) in [
        (&[1 << 40, 1 << 40][..], "too large"),
        (&[i64::MAX, 4], "too large"),
        (&[-1], "negative"),
    ] {
        let folder = folder(dims, &[("location", "weights.bin")]);
        let message = read(folder.path()).unwrap_err().to_string();
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn tensor_with_inner_and_external_data_is_refused() {
    let entries = [("location", "weights.bin")];
    let folder = folder(&[1], &entries);
    let raw_data = Some(floats([1.0]).into());
    write(
        folder.path(),
        TensorProto {
            raw_data,
            ..external("w", &[1], &entries)
        },
    );
    let message = read(folder.path()).unwrap_err().to_string();
    assert!(message.contains("two places"), "{message}");
}

#[test]
fn model_in_memory_has_no_external_data() {
    let tensor = external("w", &[1], &[("location", "Cargo.toml")]);
    let model = Model::from_bytes(with_initializers(vec![tensor]).encode_to_vec()).unwrap();
    assert!(model.external);
    let error = tensor::raw(&model.graph().initializer[0], model.externals()).unwrap_err();
    assert!(error.to_string().contains("no folder"), "{error}");
}

#[test]
fn tensors_are_read_from_several_files() {
    let folder = folder(&[], &[]);
    fs::write(folder.path().join("other.bin"), floats([-1.0, -2.0])).unwrap();
    let tensors = vec![
        external("a", &[2], &[("location", "weights.bin"), ("offset", "4")]),
        external("b", &[2], &[("location", "other.bin")]),
        raw("c", DataType::Float, &[1], &floats([0.5])),
    ];
    let path = folder.path().join("model.onnx");
    fs::write(&path, with_initializers(tensors).encode_to_vec()).unwrap();
    let model = Model::open(&path).unwrap();
    let read =
        |index: usize| tensor::read_f64(&model.graph().initializer[index], model.externals());
    assert_eq!(read(0).unwrap(), arr1(&[1.0, 2.0]).into_dyn());
    assert_eq!(read(1).unwrap(), arr1(&[-1.0, -2.0]).into_dyn());
    assert_eq!(read(2).unwrap(), arr1(&[0.5]).into_dyn());
}

/// A resolver of data in memory that returns too few bytes, too many, or an error.
#[derive(Debug)]
struct Wrong(fn(Vec<u8>) -> io::Result<Vec<u8>>, Vec<u8>);

impl Resolver for Wrong {
    fn length(&self, _: &str) -> io::Result<u64> {
        Ok(self.1.len() as u64)
    }

    fn read(&self, _: &str, offset: u64, length: usize) -> io::Result<Bytes> {
        self.0(self.1[offset as usize..][..length].to_vec()).map(Bytes::from)
    }
}

/// If a constant cannot be read, folding fails instead of returning a plan without folds.
#[test]
fn resolver_of_wrong_length_is_an_error_while_folding() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = Model::open("models/digits/un-dynamo.onnx").unwrap();
    model.external = true;
    let saved = model.save(folder.path().join("model.onnx")).unwrap();
    let [message, data] = [saved.path, saved.data.unwrap()].map(|file| fs::read(file).unwrap());
    let planned = |give| {
        let model =
            Model::from_bytes_with(message.clone(), Arc::new(Wrong(give, data.clone()))).unwrap();
        let fused = unfold::fuse(&model, &Default::default()).map(|fused| fused.plan);
        let plan = unfold::plan(&model, &Default::default());
        assert_eq!(plan.is_ok(), fused.is_ok());
        plan.map(|plan| plan.sites.len())
            .map_err(|error| error.to_string())
    };
    assert_eq!(planned(Ok), Ok(13));
    let few = planned(|_| Ok(vec![])).unwrap_err();
    assert!(
        few.contains("gave 0 bytes, ") && few.ends_with(" were asked for"),
        "{few}"
    );
    let many = planned(|mut bytes| {
        bytes.push(0);
        Ok(bytes)
    });
    assert!(many.unwrap_err().contains("the external data of tensor `"));
    let none = planned(|_| Err(io::Error::other("not today")));
    assert!(none.unwrap_err().ends_with("cannot be read: not today"));
}
