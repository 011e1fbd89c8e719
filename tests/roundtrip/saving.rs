//! The files on disk after saving.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use bytes::Bytes;
use prost::Message;
use tempfile::TempDir;
use unfold::error::Error;
use unfold::onnx::Resolver;
use unfold::onnx::proto::{
    AttributeProto, AttributeType, GraphProto, ModelProto, NodeProto, SparseTensorProto,
    TensorProto,
};
use unfold::onnx::{DataPlace, DataType, Model, SaveOptions, tensor};

use crate::{entry, external, floats, listing, raw, with_initializers};

/// The bytes of 1024 floats equal to `value`.
fn large(value: f32) -> Vec<u8> {
    floats([value; 1024])
}

/// A folder with a model whose tensors `a` and `b` are in `weights.bin`. `tied` uses the bytes of
/// `a`, and `small` is in the model's file.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("weights.bin"),
        [large(1.0), large(2.0)].concat(),
    )
    .unwrap();
    let at = |name, offset| {
        let entries = [
            ("location", "weights.bin"),
            ("offset", offset),
            ("length", "4096"),
        ];
        external(name, &[1024], &entries)
    };
    let small = raw("small", DataType::Float, &[2], &floats([5.0, 6.0]));
    let proto = with_initializers(vec![at("a", "0"), at("b", "4096"), at("tied", "0"), small]);
    fs::write(folder.path().join("in.onnx"), proto.encode_to_vec()).unwrap();
    folder
}

fn open(folder: &TempDir, name: &str) -> Model {
    Model::open(folder.path().join(name)).unwrap()
}

/// The first element of each initializer, and its entries of external data.
fn contents(path: &Path) -> HashMap<String, (f64, Vec<String>)> {
    let model = Model::open(path).unwrap();
    let of = |tensor: &TensorProto| {
        let values = tensor::read_f64(tensor, model.externals()).unwrap();
        let entries = tensor.external_data.iter().filter(|_| tensor.is_external());
        let entries = entries
            .map(|entry| format!("{}={}", entry.key(), entry.value()))
            .collect();
        (
            tensor.name().to_owned(),
            (*values.first().unwrap(), entries),
        )
    };
    model.graph().initializer.iter().map(of).collect()
}

fn place(location: &str, offset: usize) -> Vec<String> {
    vec![
        format!("location={location}"),
        format!("offset={offset}"),
        "length=4096".to_owned(),
    ]
}

#[test]
fn external_weights_move_into_one_data_file() {
    let folder = folder();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("out.onnx");
    open(&folder, "in.onnx").save(&path).unwrap();
    drop(folder);
    assert_eq!(listing(elsewhere.path()), ["out.onnx", "out.onnx.data"]);
    let contents = contents(&path);
    assert_eq!(contents["a"], (1.0, place("out.onnx.data", 0)));
    assert_eq!(contents["b"], (2.0, place("out.onnx.data", 4096)));
    assert_eq!(contents["tied"], contents["a"]);
    assert_eq!(contents["small"], (5.0, vec![]));
    assert_eq!(
        fs::metadata(elsewhere.path().join("out.onnx.data"))
            .unwrap()
            .len(),
        8192
    );
}

#[test]
fn saved_model_does_not_depend_on_the_old_data_file() {
    let folder = folder();
    let path = folder.path().join("out.onnx");
    open(&folder, "in.onnx").save(&path).unwrap();
    fs::remove_file(folder.path().join("weights.bin")).unwrap();
    assert_eq!(contents(&path)["b"], (2.0, place("out.onnx.data", 4096)));
}

#[test]
fn saving_in_place_keeps_the_data_files() {
    let folder = folder();
    let path = folder.path().join("in.onnx");
    let before = fs::read(&path).unwrap();
    let mut model = open(&folder, "in.onnx");
    model.save(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), before);
    model.graph_mut().name = Some("renamed".into());
    model.save(&path).unwrap();
    assert_eq!(open(&folder, "in.onnx").graph().name(), "renamed");
    assert_eq!(listing(folder.path()), ["in.onnx", "weights.bin"]);
    assert_eq!(contents(&path)["b"], (2.0, place("weights.bin", 4096)));
}

#[test]
fn new_weights_are_external_if_the_others_are() {
    let folder = folder();
    let path = folder.path().join("in.onnx");
    let mut model = open(&folder, "in.onnx");
    let new = raw("new", DataType::Float, &[1024], &large(7.0));
    model.graph_mut().initializer.insert(0, new);
    model.save(&path).unwrap();
    let contents = contents(&path);
    assert_eq!(contents["new"], (7.0, place("in.onnx.data", 0)));
    assert_eq!(contents["a"], (1.0, place("in.onnx.data", 4096)));
    assert_eq!(contents["small"], (5.0, vec![]));
}

#[test]
fn save_with_replaces_weights_while_writing() {
    let folder = folder();
    let path = folder.path().join("out.onnx");
    let model = open(&folder, "in.onnx");
    let mut seen = Vec::new();
    let rewrite = |tensor: &TensorProto| {
        seen.push(tensor.name().to_owned());
        let doubled = tensor::read_f64(tensor, model.externals())? * 2.0;
        let doubled = tensor::make("", DataType::Float, &doubled.view())?.raw_data;
        Ok(doubled.filter(|_| tensor.name() != "a"))
    };
    model.save_with(&path, rewrite).unwrap();
    assert_eq!(seen, ["a", "b", "tied", "small"]);
    let contents = contents(&path);
    assert_eq!(contents["a"], (1.0, place("out.onnx.data", 0)));
    assert_eq!(contents["b"], (4.0, place("out.onnx.data", 4096)));
    assert_eq!(contents["tied"], (2.0, place("out.onnx.data", 8192)));
    assert_eq!(contents["small"], (10.0, vec![]));
}

#[test]
fn save_with_supplies_missing_weights() {
    let folder = folder();
    let path = folder.path().join("out.onnx");
    let mut model = open(&folder, "in.onnx");
    let promised = TensorProto {
        raw_data: None,
        ..raw("late", DataType::Float, &[1024], &[])
    };
    model.graph_mut().initializer.push(promised);
    let late = |tensor: &TensorProto| Ok((tensor.name() == "late").then(|| large(9.0).into()));
    model.save_with(&path, late).unwrap();
    assert_eq!(contents(&path)["late"], (9.0, place("out.onnx.data", 8192)));
}

#[test]
fn replacement_of_the_wrong_size_leaves_no_file() {
    let folder = folder();
    let path = folder.path().join("out.onnx");
    let short =
        |tensor: &TensorProto| Ok((tensor.name() == "b").then(|| Bytes::from_static(b"abc")));
    let error = open(&folder, "in.onnx")
        .save_with(&path, short)
        .unwrap_err();
    assert!(error.to_string().contains("tensor `b`"), "{error}");
    assert_eq!(listing(folder.path()), ["in.onnx", "weights.bin"]);
}

#[test]
fn failing_replacement_keeps_the_old_model() {
    let folder = folder();
    let path = folder.path().join("in.onnx");
    let before = fs::read(&path).unwrap();
    let model = open(&folder, "in.onnx");
    let fail = |tensor: &TensorProto| match tensor.name() {
        "tied" => Err(Error::Cycle {
            file: "enough".into(),
            node: "enough".into(),
        }),
        _ => Ok(Some(large(0.0).into())),
    };
    assert!(matches!(
        model.save_with(&path, fail),
        Err(Error::Cycle { .. })
    ));
    assert_eq!(listing(folder.path()), ["in.onnx", "weights.bin"]);
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn data_offsets_are_aligned_to_4096_bytes() {
    let tensor = |name, count: usize| raw(name, DataType::Int8, &[count as i64], &vec![3; count]);
    let proto = with_initializers(vec![
        tensor("a", 1024),
        tensor("b", 5000),
        tensor("c", 1023),
        tensor("d", 1025),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let mut model = Model::from_proto(proto);
    model.external = true;
    model.save(&path).unwrap();
    let model = Model::open(&path).unwrap();
    let offset = |tensor: &TensorProto| {
        tensor
            .external_data
            .get(1)
            .map(|entry| entry.value().to_owned())
    };
    let offsets: Vec<_> = model.graph().initializer.iter().map(offset).collect();
    let expected = [Some("0"), Some("4096"), None, Some("12288")];
    assert_eq!(offsets, expected.map(|offset| offset.map(str::to_owned)));
    let last = tensor::raw(&model.graph().initializer[3], model.externals()).unwrap();
    assert_eq!(last, [3; 1025][..]);
}

#[test]
fn external_weights_can_move_inside() {
    let folder = folder();
    let path = folder.path().join("inside.onnx");
    let mut model = open(&folder, "in.onnx");
    model.external = false;
    model.save(&path).unwrap();
    assert_eq!(
        listing(folder.path()),
        ["in.onnx", "inside.onnx", "weights.bin"]
    );
    assert_eq!(contents(&path)["b"], (2.0, vec![]));
    assert!(!Model::open(&path).unwrap().external);
}

#[test]
fn external_weights_are_moved_from_every_place() {
    let folder = folder();
    let at = || {
        external(
            "",
            &[1024],
            &[("location", "weights.bin"), ("offset", "4096")],
        )
    };
    let attribute = |kind: AttributeType| AttributeProto {
        name: Some(format!("{kind:?}")),
        r#type: Some(kind.into()),
        ..Default::default()
    };
    let sparse = || SparseTensorProto {
        values: Some(at()),
        indices: Some(at()),
        dims: vec![],
    };
    let body = GraphProto {
        initializer: vec![at()],
        ..Default::default()
    };
    let node = NodeProto {
        attribute: vec![
            AttributeProto {
                t: Some(Box::new(at())),
                ..attribute(AttributeType::Tensor)
            },
            AttributeProto {
                tensors: vec![at()],
                ..attribute(AttributeType::Tensors)
            },
            AttributeProto {
                g: Some(Box::new(body.clone())),
                ..attribute(AttributeType::Graph)
            },
            AttributeProto {
                graphs: vec![body],
                ..attribute(AttributeType::Graphs)
            },
            AttributeProto {
                sparse_tensor: Some(Box::new(sparse())),
                sparse_tensors: vec![sparse()],
                ..attribute(AttributeType::SparseTensor)
            },
        ],
        ..Default::default()
    };
    let graph = GraphProto {
        node: vec![node.clone()],
        sparse_initializer: vec![sparse()],
        ..Default::default()
    };
    let mut proto = crate::model(graph.clone());
    proto
        .training_info
        .push(unfold::onnx::proto::TrainingInfoProto {
            initialization: Some(graph.clone()),
            algorithm: Some(graph),
            ..Default::default()
        });
    proto.functions.push(unfold::onnx::proto::FunctionProto {
        attribute_proto: node.attribute.clone(),
        node: vec![node],
        ..Default::default()
    });
    let count = |proto: &ModelProto, text: &[u8]| {
        proto
            .encode_to_vec()
            .windows(text.len())
            .filter(|part| part == &text)
            .count()
    };
    let tensors = count(&proto, b"weights.bin");
    fs::write(folder.path().join("in.onnx"), proto.encode_to_vec()).unwrap();
    open(&folder, "in.onnx")
        .save(folder.path().join("out.onnx"))
        .unwrap();
    let moved = open(&folder, "out.onnx").proto;
    assert_eq!(
        (
            count(&moved, b"weights.bin"),
            count(&moved, b"out.onnx.data")
        ),
        (0, tensors)
    );
    assert_eq!(
        fs::read(folder.path().join("out.onnx.data")).unwrap(),
        large(2.0)
    );
}

#[test]
fn unknown_external_entry_is_not_dropped() {
    let folder = folder();
    let mut model = open(&folder, "in.onnx");
    model.graph_mut().initializer[0]
        .external_data
        .push(entry("prepacked_0", "1;2;3"));
    let error = model.save(folder.path().join("out.onnx")).unwrap_err();
    assert!(error.to_string().contains("`prepacked_0`"), "{error}");
    model.save(folder.path().join("in.onnx")).unwrap();
    assert_eq!(
        open(&folder, "in.onnx").graph().initializer[0]
            .external_data
            .len(),
        4
    );
}

/// The name of the data file of a model.
fn data_of(path: &Path) -> String {
    let contents = contents(path);
    contents["a"].1[0]
        .strip_prefix("location=")
        .unwrap()
        .to_owned()
}

#[test]
fn foreign_file_named_like_the_data_is_kept() {
    let folder = folder();
    fs::write(folder.path().join("out.onnx.data"), "somebody's").unwrap();
    fs::create_dir(folder.path().join("out.onnx.7.data")).unwrap();
    let path = folder.path().join("out.onnx");
    let saved = open(&folder, "in.onnx").save(&path).unwrap();
    assert_eq!(saved.data, Some(folder.path().join("out.onnx.8.data")));
    assert_eq!(
        fs::read(folder.path().join("out.onnx.data")).unwrap(),
        b"somebody's"
    );
    assert_eq!(contents(&path)["b"], (2.0, place("out.onnx.8.data", 4096)));
}

#[test]
fn data_of_another_model_is_kept() {
    let folder = folder();
    fs::rename(
        folder.path().join("weights.bin"),
        folder.path().join("out.onnx.data"),
    )
    .unwrap();
    let mut model = open(&folder, "in.onnx");
    for tensor in &mut model.graph_mut().initializer[..3] {
        tensor.external_data[0].value = Some("out.onnx.data".into());
    }
    model.save(folder.path().join("in.onnx")).unwrap();
    let double = |tensor: &TensorProto| Ok((tensor.name() == "a").then(|| large(7.0).into()));
    open(&folder, "in.onnx")
        .save_with(folder.path().join("out.onnx"), double)
        .unwrap();
    assert_eq!(
        listing(folder.path()),
        ["in.onnx", "out.onnx", "out.onnx.1.data", "out.onnx.data"]
    );
    assert_eq!(contents(&folder.path().join("in.onnx"))["a"].0, 1.0);
    assert_eq!(contents(&folder.path().join("out.onnx"))["a"].0, 7.0);
}

#[test]
fn data_of_a_replaced_model_is_removed() {
    let folder = folder();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("out.onnx");
    for data in ["out.onnx.data", "out.onnx.1.data", "out.onnx.2.data"] {
        let saved = open(&folder, "in.onnx").save(&path).unwrap();
        assert_eq!(
            (saved.data, saved.left),
            (Some(elsewhere.path().join(data)), vec![])
        );
        assert_eq!(listing(elsewhere.path()), ["out.onnx", data]);
        assert_eq!(contents(&path)["tied"], (1.0, place(data, 0)));
    }
    let mut inside = open(&folder, "in.onnx");
    inside.external = false;
    inside.save(&path).unwrap();
    assert_eq!(listing(elsewhere.path()), ["out.onnx"]);
}

#[test]
fn data_that_another_model_reads_is_kept() {
    let folder = folder();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("out.onnx");
    let model = open(&folder, "in.onnx");
    model.save(&path).unwrap();
    fs::copy(&path, elsewhere.path().join("backup.onnx")).unwrap();
    let saved = model.save(&path).unwrap();
    assert_eq!(saved.left, [elsewhere.path().join("out.onnx.data")]);
    assert_eq!(
        contents(&elsewhere.path().join("backup.onnx"))["b"],
        (2.0, place("out.onnx.data", 4096))
    );
    assert_eq!(contents(&path)["b"], (2.0, place("out.onnx.1.data", 4096)));
}

#[test]
fn data_of_another_layout_is_kept() {
    let folder = folder();
    let path = folder.path().join("in.onnx");
    fs::rename(
        folder.path().join("weights.bin"),
        folder.path().join("in.onnx.data"),
    )
    .unwrap();
    let mut proto = Model::open(&path).unwrap().proto;
    for (tensor, offset) in proto
        .graph
        .as_mut()
        .unwrap()
        .initializer
        .iter_mut()
        .zip(["4096", "0", "4096"])
    {
        tensor.external_data[0].value = Some("in.onnx.data".into());
        tensor.external_data[1].value = Some(offset.into());
    }
    fs::write(&path, proto.encode_to_vec()).unwrap();
    let zero = |tensor: &TensorProto| Ok((tensor.name() == "a").then(|| large(0.0).into()));
    let saved = Model::open(&path).unwrap().save_with(&path, zero).unwrap();
    assert_eq!(saved.left, [folder.path().join("in.onnx.data")]);
    assert_eq!(
        listing(folder.path()),
        ["in.onnx", "in.onnx.1.data", "in.onnx.data"]
    );
    assert_eq!((contents(&path)["a"].0, contents(&path)["b"].0), (0.0, 1.0));
}

#[test]
fn failed_rename_keeps_the_old_model_and_its_data() {
    let folder = folder();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("out.onnx");
    let model = open(&folder, "in.onnx");
    model.save(&path).unwrap();
    let before = contents(&path);
    // While the model is saved, a folder takes the place of the old file, so that the last rename
    // fails.
    let swap = |tensor: &TensorProto| {
        if tensor.name() == "small" {
            fs::rename(&path, elsewhere.path().join("old.onnx")).unwrap();
            fs::create_dir(&path).unwrap();
        }
        Ok(None)
    };
    let error = model.save_with(&path, swap).unwrap_err();
    assert!(
        matches!(&error, Error::Io { path: named, .. } if *named == path),
        "{error}"
    );
    assert_eq!(
        listing(elsewhere.path()),
        ["old.onnx", "out.onnx", "out.onnx.data"]
    );
    assert_eq!(contents(&elsewhere.path().join("old.onnx")), before);
}

#[test]
fn folder_removed_while_saving_is_an_error() {
    let folder = folder();
    let elsewhere = tempfile::tempdir().unwrap();
    let inner = elsewhere.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let remove = |tensor: &TensorProto| {
        if tensor.name() == "b" {
            fs::remove_dir_all(&inner).unwrap();
        }
        Ok(None)
    };
    let error = open(&folder, "in.onnx")
        .save_with(inner.join("out.onnx"), remove)
        .unwrap_err();
    assert!(error.to_string().contains("out.onnx"), "{error}");
    assert!(listing(elsewhere.path()).is_empty());
}

/// The leftovers of a killed process are drafts whose list is not locked.
#[test]
fn next_save_removes_leftovers_of_a_killed_one() {
    let folder = folder();
    let elsewhere = tempfile::tempdir().unwrap();
    let at = |name: &str| elsewhere.path().join(name);
    let model = open(&folder, "in.onnx");
    model.save(at("out.onnx")).unwrap();
    let draft = |name: &str, list: &str| {
        fs::create_dir(at(name)).unwrap();
        fs::write(at(name).join("list"), list).unwrap();
        fs::write(at(name).join("model"), "half").unwrap();
    };
    // One process was killed before it renamed the model, and one after that.
    draft(".unfold-before", "out.onnx\0out.onnx.5.data\0out.onnx.data");
    fs::write(at("out.onnx.5.data"), "new").unwrap();
    draft(".unfold-after", "out.onnx\0out.onnx.data\0out.onnx.3.data");
    fs::write(at("out.onnx.3.data"), "old").unwrap();
    // One process was killed before it wrote a list. The other folders belong to no save.
    fs::create_dir(at(".unfold-empty")).unwrap();
    draft(".unfold-odd", "../x\0../x.data\0notes\0out.onnx.9.data");
    for kept in [".unfold-odd/more", "notes", "out.onnx.9.data"] {
        fs::write(at(kept), "kept").unwrap();
    }
    fs::create_dir(at(".unfold-folder")).unwrap();
    fs::write(at(".unfold-folder/kept"), "kept").unwrap();

    model.save(at("other.onnx")).unwrap();
    let expected = [
        ".unfold-folder",
        ".unfold-odd",
        "notes",
        "other.onnx",
        "other.onnx.data",
        "out.onnx",
        "out.onnx.9.data",
        "out.onnx.data",
    ];
    assert_eq!(listing(elsewhere.path()), expected);
    assert_eq!(listing(&at(".unfold-odd")), ["more"]);
    assert_eq!(contents(&at("out.onnx"))["b"].0, 2.0);
}

#[test]
fn save_leaves_concurrent_saves_alone() {
    let folder = folder();
    let elsewhere = tempfile::tempdir().unwrap();
    let model = open(&folder, "in.onnx");
    let meanwhile = |tensor: &TensorProto| {
        if tensor.name() == "b" {
            model.save(elsewhere.path().join("other.onnx")).unwrap();
        }
        Ok(None)
    };
    model
        .save_with(elsewhere.path().join("out.onnx"), meanwhile)
        .unwrap();
    let names = ["other.onnx", "other.onnx.data", "out.onnx", "out.onnx.data"];
    assert_eq!(listing(elsewhere.path()), names);
    assert_eq!(contents(&elsewhere.path().join("out.onnx"))["a"].0, 1.0);
}

/// A resolver that saves another model at its first read, which is after the first save has chosen
/// the name of its data file.
#[derive(Debug)]
struct SavesFirst {
    folder: TempDir,
    path: PathBuf,
    saved: Once,
}

impl Resolver for SavesFirst {
    fn length(&self, _: &str) -> io::Result<u64> {
        Ok(8192)
    }

    fn read(&self, _: &str, _: u64, length: usize) -> io::Result<Bytes> {
        self.saved.call_once(|| {
            open(&self.folder, "in.onnx").save(&self.path).unwrap();
        });
        Ok(large(7.0)[..length].to_vec().into())
    }
}

#[test]
fn concurrent_saves_choose_different_data_files() {
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("out.onnx");
    let folder = folder();
    let message = fs::read(folder.path().join("in.onnx")).unwrap();
    let weights = SavesFirst {
        folder,
        path: path.clone(),
        saved: Once::new(),
    };
    let model = Model::from_bytes_with(message, Arc::new(weights)).unwrap();
    let options = SaveOptions {
        place: DataPlace::Beside,
        ..Default::default()
    };
    let saved = model.save_as(&path, &options).unwrap();
    assert_eq!(saved.data, Some(elsewhere.path().join("out.onnx.data")));
    assert_eq!(contents(&path)["a"], (7.0, place("out.onnx.data", 0)));
    assert_eq!(listing(elsewhere.path()), ["out.onnx", "out.onnx.data"]);
}

#[test]
#[cfg(unix)]
fn dangling_symlinks_are_followed() {
    use std::os::unix::fs::symlink;
    let folder = folder();
    let elsewhere = tempfile::tempdir().unwrap();
    let (link, real) = (
        folder.path().join("link.onnx"),
        elsewhere.path().join("real.onnx"),
    );
    symlink("second.onnx", &link).unwrap();
    symlink(&real, folder.path().join("second.onnx")).unwrap();
    for data in ["real.onnx.data", "real.onnx.1.data"] {
        let saved = open(&folder, "in.onnx").save(&link).unwrap();
        assert_eq!(saved.path, real);
        assert_eq!(listing(elsewhere.path()), ["real.onnx", data]);
        assert_eq!(contents(&real)["b"].0, 2.0);
        assert!(link.is_symlink());
    }
    symlink("round.onnx", folder.path().join("round.onnx")).unwrap();
    let error = open(&folder, "in.onnx")
        .save(folder.path().join("round.onnx"))
        .unwrap_err();
    assert!(error.to_string().contains("circle"), "{error}");
}

#[test]
#[cfg(unix)]
fn hard_link_of_a_replaced_model_keeps_its_weights() {
    let folder = folder();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("out.onnx");
    let model = open(&folder, "in.onnx");
    model.save(&path).unwrap();
    fs::hard_link(&path, elsewhere.path().join("second.onnx")).unwrap();
    let zero = |tensor: &TensorProto| Ok((tensor.name() == "a").then(|| large(0.0).into()));
    model.save_with(&path, zero).unwrap();
    assert_eq!(contents(&path)["a"].0, 0.0);
    assert_eq!(contents(&elsewhere.path().join("second.onnx"))["a"].0, 1.0);
}

#[test]
fn model_is_saved_over_its_own_files() {
    let folder = folder();
    let path = folder.path().join("model.onnx");
    open(&folder, "in.onnx").save(&path).unwrap();
    let model = Model::open(&path).unwrap();
    for round in 0..3 {
        let zero = |tensor: &TensorProto| Ok((tensor.name() == "a").then(|| large(0.0).into()));
        model.save_with(&path, zero).unwrap();
        let contents = contents(&path);
        assert_eq!(
            (contents["a"].0, contents["b"].0, contents["tied"].0),
            (0.0, 2.0, 1.0),
            "{round}"
        );
    }
    let tied = &model.graph().initializer[2];
    assert_eq!(
        *tensor::read_f64(tied, model.externals())
            .unwrap()
            .first()
            .unwrap(),
        1.0
    );
    assert_eq!(
        listing(folder.path()),
        ["in.onnx", "model.onnx", &data_of(&path), "weights.bin"]
    );
}

#[test]
fn open_model_keeps_its_old_weights_after_a_rewrite() {
    let folder = folder();
    let path = folder.path().join("model.onnx");
    open(&folder, "in.onnx").save(&path).unwrap();
    let model = Model::open(&path).unwrap();
    let zero = |tensor: &TensorProto| Ok(tensor.is_external().then(|| large(0.0).into()));
    model.save_with(&path, zero).unwrap();
    assert_eq!(contents(&path)["b"].0, 0.0);
    let b = &model.graph().initializer[1];
    assert_eq!(
        *tensor::read_f64(b, model.externals())
            .unwrap()
            .first()
            .unwrap(),
        2.0
    );
}

/// A folder and a model with a large tensor inside the model's file.
fn inside() -> (TempDir, PathBuf, Model) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.onnx");
    let proto = with_initializers(vec![raw("w", DataType::Float, &[1024], &large(1.0))]);
    fs::write(&path, proto.encode_to_vec()).unwrap();
    let model = Model::open(&path).unwrap();
    (folder, path, model)
}

#[test]
fn model_file_changed_while_open_is_not_saved() {
    let (folder, path, model) = inside();
    let longer = fs::File::options().append(true).open(&path).unwrap();
    (&longer).write_all(b"more").unwrap();
    let error = model.save(folder.path().join("out.onnx")).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("in.onnx: it was written into while it was read"),
        "{error}"
    );
    assert_eq!(listing(folder.path()), ["in.onnx"]);
}

#[test]
fn model_file_truncated_while_open_is_not_saved() {
    let (folder, path, model) = inside();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(10)
        .unwrap();
    let (saved, copied) = (
        folder.path().join("saved.onnx"),
        folder.path().join("copied.onnx"),
    );
    for error in [
        model.save(&saved).unwrap_err(),
        model.copy(&copied).unwrap_err(),
    ] {
        assert!(
            error
                .to_string()
                .ends_with("`in.onnx` was cut short while it was read"),
            "{error}"
        );
    }
    assert!(tensor::raw(&model.graph().initializer[0], model.externals()).is_err());
    assert_eq!(listing(folder.path()), ["in.onnx"]);
}

#[test]
fn data_file_truncated_while_saving_is_an_error() {
    let folder = folder();
    let model = open(&folder, "in.onnx");
    let cut = |tensor: &TensorProto| {
        if tensor.name() == "b" {
            let data = fs::File::options()
                .write(true)
                .open(folder.path().join("weights.bin"))
                .unwrap();
            data.set_len(6000).unwrap();
        }
        Ok(None)
    };
    let error = model
        .save_with(folder.path().join("out.onnx"), cut)
        .unwrap_err();
    assert!(
        matches!(&error, Error::ExternalData { tensor, .. } if tensor == "b"),
        "{error}"
    );
    assert!(unfold::fuse(&model, &Default::default()).is_ok());
    assert!(model.copy(folder.path().join("out.onnx")).is_err());
    assert!(tensor::read_f64(&model.graph().initializer[1], model.externals()).is_err());
    assert_eq!(
        *tensor::read_f64(&model.graph().initializer[0], model.externals())
            .unwrap()
            .first()
            .unwrap(),
        1.0
    );
    assert_eq!(listing(folder.path()), ["in.onnx", "weights.bin"]);
}

#[test]
fn open_model_survives_its_file_being_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let proto = |value| with_initializers(vec![raw("w", DataType::Float, &[1024], &large(value))]);
    Model::from_proto(proto(1.0)).save(&path).unwrap();
    let model = Model::open(&path).unwrap();
    Model::from_proto(proto(2.0)).save(&path).unwrap();
    assert_eq!(contents(&path)["w"].0, 2.0);
    model.save(&path).unwrap();
    assert_eq!(contents(&path)["w"].0, 1.0);
    assert_eq!(listing(folder.path()), ["model.onnx"]);
}

#[test]
fn folders_and_devices_are_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::from_proto(crate::model(GraphProto::default()));
    for path in [
        folder.path().to_owned(),
        folder.path().join("missing/model.onnx"),
    ] {
        let error = model.save(&path).unwrap_err();
        assert!(
            matches!(&error, Error::Io { path: named, .. } if *named == path),
            "{error}"
        );
    }
    assert!(listing(folder.path()).is_empty());
    #[cfg(unix)]
    assert!(
        model
            .save("/dev/null")
            .unwrap_err()
            .to_string()
            .contains("no regular file")
    );
}

#[test]
#[cfg(unix)]
fn saved_files_have_default_or_kept_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let plain = folder.path().join("plain");
    fs::write(&plain, "").unwrap();
    let path = folder.path().join("model.onnx");
    let model = Model::from_proto(crate::model(GraphProto::default()));
    model.save(&path).unwrap();
    assert_eq!(mode(&path), mode(&plain));
    fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    model.save(&path).unwrap();
    assert_eq!(mode(&path), 0o640);
}

#[test]
fn message_above_2_gib_is_not_written() {
    // The zeros are never read or written, so they take no memory.
    let half: Bytes = vec![0; 1 << 30].into();
    let tensor = |name: &str| TensorProto {
        raw_data: Some(half.clone()),
        ..raw(name, DataType::Int8, &[1 << 30], &[])
    };
    let proto = with_initializers(vec![tensor("a"), tensor("b")]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let model = Model::from_proto(proto);
    let inside = SaveOptions {
        place: DataPlace::Inside,
        ..SaveOptions::default()
    };
    let error = model.save_as(&path, &inside).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }) && error.to_string().contains("external data"));
    assert!(matches!(model.to_bytes(), Err(Error::TooLarge { .. })));
    assert!(listing(folder.path()).is_empty());
}
