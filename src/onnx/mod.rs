//! Input and output of ONNX models: messages, files, external data and tensors.

mod atomic_write;
mod data;
mod decode;
pub(crate) mod default_types;
pub(crate) mod digest;
mod element;
pub(crate) mod external_data;
mod file_format;
mod file_layout;
#[cfg(feature = "prove")]
mod identical;
mod lazy_read;
mod load;
mod message_fields;
pub(crate) mod node;
pub(crate) mod operator;
mod placeholders;
pub mod proto;
mod replaced;
mod save;
pub(crate) mod schema;
pub(crate) mod shadowed_names;
mod sink;
mod size;
pub mod tensor;
mod text;
pub(crate) mod tract_quirks;
mod transfer;
pub(crate) mod value_range;
mod walk;
mod wire;

use std::path::Path;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

pub(crate) use crate::onnx::atomic_write::write_whole;
#[cfg(feature = "cli")]
pub(crate) use crate::onnx::atomic_write::{destination, halt_saves};
pub use digest::Digests;
use digest::{Contents, Pending};
pub use external_data::{Externals, Resolver};
#[cfg(feature = "cli")]
pub(crate) use file_format::is_model;

pub use element::DataType;
pub use file_layout::MessagePart;
use proto::{GraphProto, ModelProto, NodeProto, TensorProto};
pub use save::{DataPlace, SaveOptions, Saved};
pub use text::PrintedElements;

/// An ONNX model, with references to the files that it was read from.
///
/// The elements of large tensors stay in their files until they are needed or written. Until then,
/// a tensor of [`Model::proto`] refers to its elements as external data, at a location that only
/// this model and its clones can resolve. [`tensor::raw`] reads the elements of any tensor, and
/// [`Model::into_memory`] moves them into the message.
///
/// ```
/// use unfold::onnx::Model;
/// use unfold::onnx::proto::{GraphProto, ModelProto, OperatorSetIdProto};
///
/// let model = Model::from_proto(ModelProto {
///     ir_version: Some(10),
///     opset_import: vec![OperatorSetIdProto { domain: None, version: Some(21) }],
///     graph: Some(GraphProto { name: Some("main".into()), ..Default::default() }),
///     ..Default::default()
/// });
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("model.onnx");
/// model.save(&path)?;
///
/// let again = Model::open(&path)?;
/// assert_eq!(again.proto, model.proto);
/// assert_eq!(again.opset(""), Some(21));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Model {
    /// The message of the file, without the elements that stayed in the file.
    pub proto: ModelProto,
    /// Whether [`Model::save`] writes the weights into a data file next to the model.
    ///
    /// It is true for a model that was read with weights in such files.
    pub external: bool,
    /// The file that the model was read from.
    path: Option<PathBuf>,
    /// The bytes that the model was read from; `None` if the model was built in memory, or has
    /// changed.
    source: Option<Arc<Contents>>,
    /// The metadata entry with a digest that is filled in when the model is written.
    pending: Option<Pending>,
    /// Resolves the data that this model's tensors keep outside of the message.
    externals: Externals,
}

impl Model {
    /// Creates a model in memory, without files.
    pub fn from_proto(proto: ModelProto) -> Self {
        Self {
            proto,
            external: false,
            path: None,
            source: None,
            pending: None,
            externals: Externals::none(),
        }
    }

    /// The file that the model was read from; `None` if it was not read from a file.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Forgets the bytes that the model was read from, because the model has changed.
    pub(crate) fn forget_source(&mut self) {
        self.source = None;
    }

    /// The name of the model in errors: its path, or `model` without one.
    pub(crate) fn file(&self) -> PathBuf {
        self.path.clone().unwrap_or_else(|| "model".into())
    }

    /// The externals, which resolve the data that this model's tensors keep outside of the message.
    pub fn externals(&self) -> &Externals {
        &self.externals
    }

    /// The main graph, or an empty graph if the message has none.
    pub fn graph(&self) -> &GraphProto {
        static EMPTY: LazyLock<GraphProto> = LazyLock::new(GraphProto::default);
        self.proto.graph.as_ref().unwrap_or(&EMPTY)
    }

    /// The main graph, which is created if the message has none.
    pub fn graph_mut(&mut self) -> &mut GraphProto {
        self.proto.graph.get_or_insert_default()
    }

    /// A copy of the model with other nodes and additional constants.
    pub(crate) fn with_nodes(&self, node: Vec<NodeProto>, constants: Vec<TensorProto>) -> Self {
        let graph = self.graph();
        let initializer = graph.initializer.iter().cloned().chain(constants).collect();
        self.with_graph(GraphProto {
            node,
            initializer,
            ..graph.frame()
        })
    }

    /// A copy of the model with another main graph.
    pub(crate) fn with_graph(&self, graph: GraphProto) -> Self {
        let before = &self.proto;
        let proto = ModelProto {
            ir_version: before.ir_version,
            producer_name: before.producer_name.clone(),
            producer_version: before.producer_version.clone(),
            domain: before.domain.clone(),
            model_version: before.model_version,
            doc_string: before.doc_string.clone(),
            graph: Some(graph),
            opset_import: before.opset_import.clone(),
            metadata_props: before.metadata_props.clone(),
            training_info: before.training_info.clone(),
            functions: before.functions.clone(),
            configuration: before.configuration.clone(),
        };
        Self {
            proto,
            external: self.external,
            path: self.path.clone(),
            source: self.source.clone(),
            pending: self.pending.clone(),
            externals: self.externals.clone(),
        }
    }

    /// The version of ONNX's own operator set that the model imports, or 1 if it imports none.
    pub fn own_opset(&self) -> i64 {
        self.opset("").unwrap_or(1)
    }

    /// The version of an operator set that the model imports. The domain of ONNX itself is `""`.
    pub fn opset(&self, domain: &str) -> Option<i64> {
        let domain = node::canonical_domain(domain);
        self.proto
            .opset_import
            .iter()
            .find(|set| node::canonical_domain(set.domain()) == domain)
            .map(|set| set.version())
    }
}
