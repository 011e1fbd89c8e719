//! The sizes of a model and of its files.

use std::collections::HashMap;
use std::path::Path;

use prost::Message;

use super::node::bodies;
use super::proto::TensorProto;
use super::save::SaveOptions;
use super::{Model, tensor};

/// Stands for the name of a model without a file. The name of the data file, which the message
/// contains, is derived from it.
const UNNAMED: &str = "model.onnx";

impl Model {
    /// The number of bytes of all initializers and of all tensors in Constant nodes, including
    /// those in bodies and in other files.
    pub fn weight_bytes(&self) -> u64 {
        self.tensor_bytes(|_| true)
    }

    /// The total number of bytes of the files that [`Model::save`] writes: the model and, if there
    /// is one, its data file.
    ///
    /// ```
    /// use unfold::onnx::Model;
    ///
    /// let model = Model::open("models/digits/un-dynamo.onnx")?;
    /// let fused = unfold::fuse(&model, &Default::default())?.model;
    /// let folder = tempfile::tempdir()?;
    /// let saved = fused.save(folder.path().join("un-dynamo.onnx"))?;
    /// assert_eq!(fused.file_bytes(), saved.path.metadata()?.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn file_bytes(&self) -> u64 {
        let own = self
            .path()
            .and_then(Path::file_name)
            .map(|name| name.to_string_lossy());
        let data = format!("{}.data", own.as_deref().unwrap_or(UNNAMED));
        match self.laid_out(&SaveOptions::default(), &data) {
            Ok(layout) => layout.message_bytes() as u64 + layout.weight_bytes(),
            // An estimate, because missing data cannot be laid out.
            Err(_) => self.about_bytes(),
        }
    }

    /// The number of bytes that the model was read from. This is the length of its own file, plus
    /// the range from the first to the last byte that its tensors use in each data file. For a
    /// model that was built in memory, it is [`Model::file_bytes`].
    pub(crate) fn read_bytes(&self) -> u64 {
        match &self.source {
            Some(source) => source.data.len() as u64 + self.outside_bytes(),
            None => self.file_bytes(),
        }
    }

    /// A quick estimate of the number of bytes of the model's files.
    pub(crate) fn about_bytes(&self) -> u64 {
        self.proto.encoded_len() as u64
            + self.tensor_bytes(|tensor| tensor.is_external() || tensor::is_held(tensor))
    }

    /// The number of bytes of the model's data files, where each counts from the first to the last
    /// byte that the tensors use.
    pub(super) fn outside_bytes(&self) -> u64 {
        let mut taken: HashMap<String, (u64, u64)> = HashMap::new();
        self.each_tensor(&mut |tensor| {
            if tensor.is_external()
                && let Ok(span) = self.externals.span(tensor)
            {
                let end = span.offset + span.length as u64;
                let (first, last) = taken.entry(span.location).or_insert((span.offset, end));
                (*first, *last) = (span.offset.min(*first), end.max(*last));
            }
        });
        taken.into_values().map(|(first, last)| last - first).sum()
    }

    fn tensor_bytes(&self, counts: impl Fn(&TensorProto) -> bool) -> u64 {
        let mut bytes = 0;
        self.each_tensor(&mut |tensor| {
            if counts(tensor) {
                bytes += tensor::byte_size(tensor).unwrap_or_default() as u64;
            }
        });
        bytes
    }

    /// Visits all initializers and all tensors in attributes, including those in bodies.
    fn each_tensor<'m>(&'m self, visit: &mut dyn FnMut(&'m TensorProto)) {
        let mut open = vec![self.graph()];
        while let Some(graph) = open.pop() {
            let attributes = graph.node.iter().flat_map(|node| &node.attribute);
            let constants = attributes.filter_map(|attribute| attribute.t.as_deref());
            graph
                .initializer
                .iter()
                .chain(constants)
                .for_each(&mut *visit);
            open.extend(graph.node.iter().flat_map(bodies));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_disk(files: &[&Path]) -> u64 {
        files
            .iter()
            .map(|file| file.metadata().unwrap().len())
            .sum()
    }

    #[test]
    fn model_sizes_equal_file_sizes() {
        let path = Path::new("models/digits/un-dynamo.onnx");
        let model = Model::open(path).unwrap();
        assert_eq!(
            (model.read_bytes(), model.file_bytes()),
            (on_disk(&[path]), on_disk(&[path]))
        );
        let mut fused = crate::fuse(&model, &Default::default()).unwrap().model;
        let folder = tempfile::tempdir().unwrap();
        let saved = fused.save(folder.path().join("inside.onnx")).unwrap();
        assert_eq!(
            (saved.bytes, fused.file_bytes()),
            (on_disk(&[&saved.path]), on_disk(&[&saved.path]))
        );
        // Here the weights are in a data file, in which offsets are aligned.
        fused.external = true;
        let saved = fused.save(folder.path().join("un-dynamo.onnx")).unwrap();
        let files = on_disk(&[&saved.path, saved.data.as_deref().unwrap()]);
        assert_eq!((saved.bytes, fused.file_bytes()), (files, files));
        let again = Model::open(&saved.path).unwrap();
        assert_eq!((again.read_bytes(), again.file_bytes()), (files, files));
        // Data that stays in its file is not written again, but counts.
        assert_eq!(again.save(&saved.path).unwrap().bytes, files);
        let copied = again.copy(folder.path().join("copy.onnx")).unwrap();
        assert_eq!(
            copied.bytes,
            on_disk(&[&copied.path, copied.data.as_deref().unwrap()])
        );
    }

    #[test]
    fn shared_data_file_counts_only_its_used_part() {
        let folder = tempfile::tempdir().unwrap();
        let mut model = Model::open("models/digits/un-dynamo.onnx").unwrap();
        model.external = true;
        let saved = model.save(folder.path().join("model.onnx")).unwrap();
        let data = std::fs::OpenOptions::new()
            .append(true)
            .open(saved.data.unwrap())
            .unwrap();
        data.set_len(1 << 24).unwrap();
        assert_eq!(Model::open(&saved.path).unwrap().read_bytes(), saved.bytes);
    }
}
