//! Helpers for tests of folding: they build small models, and compute them by the specification.

#![allow(dead_code, reason = "every test binary uses a part of it")]

pub mod blocks;
pub mod judge;
pub mod numbers;
pub mod reference;
pub mod text;

use std::collections::HashSet;
use std::env;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;

use ndarray::ArrayD;
use unfold::Target;
use unfold::onnx::proto::{
    AttributeProto, AttributeType, Dim, Dimension, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TensorType, TypeProto, ValueInfoProto,
};
use unfold::onnx::{DataType, Externals, Model, tensor};
use unfold::prove::{Proof, ProveOptions, prove};
use unfold::{FuseOptions, Fused};

/// Folds a model, and checks its new tensors. If `UNFOLD_GRAPHS` names a folder, saves the model
/// there, so that two builds can be compared on the same models.
pub fn fuse(model: &Model) -> Fused {
    keep(model);
    let fused = unfold::fuse(model, &options()).unwrap();
    check_new_tensors(model, &fused).unwrap_or_else(|why| panic!("{why}\n{}", text::print(model)));
    is_proved_or_listed(model, &fused)
        .unwrap_or_else(|why| panic!("{why}\n{}", text::print(&fused.model)));
    fused
}

/// Options with which everything folds that can. Weights of such small models are copied, whatever
/// that adds. Normalizations and products stay the same operators.
pub fn options() -> FuseOptions<'static> {
    FuseOptions {
        max_growth: f64::INFINITY,
        ..portable()
    }
}

/// The default options, but normalizations and products stay the same operators, for tests of
/// folding by itself.
pub fn portable() -> FuseOptions<'static> {
    FuseOptions {
        target: Target::Portable,
        ..FuseOptions::default()
    }
}

/// Checks that the result of a model is proved, or that the test is listed as one whose proof may
/// be undecided.
pub fn is_proved_or_listed(model: &Model, fused: &Fused) -> Result<(), String> {
    match prove(
        model,
        &fused.model,
        &fused.plan.tensors,
        &ProveOptions::default(),
    ) {
        Proof::Disproved { at, reason, .. } => Err(format!("`{at}`: {reason}")),
        Proof::Proved { .. } => Ok(()),
        Proof::Undecided { .. } => may_be_undecided(),
        Proof::Invalid { at, reason } => {
            Err(format!("what folding made is invalid at `{at}`: {reason}"))
        }
    }
}

/// The names of the tests whose results the prover may leave undecided, one in each line.
const UNDECIDED: &str = include_str!("undecided.txt");

/// Checks that the running test is in [`UNDECIDED`]. With `LIST_UNDECIDED=FILE`, a test that is not
/// in the list is added to the file, and passes.
fn may_be_undecided() -> Result<(), String> {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default();
    // With one thread, all tests run on the main thread, whose name is not that of a test.
    if test == "main" || UNDECIDED.lines().any(|listed| listed == test) {
        return Ok(());
    }
    let Some(file) = env::var_os("LIST_UNDECIDED") else {
        return Err(format!(
            "the proof is undecided, and `{test}` is not in undecided.txt"
        ));
    };
    let mut file = File::options()
        .create(true)
        .append(true)
        .open(file)
        .unwrap();
    writeln!(file, "{test}").unwrap();
    Ok(())
}

/// Checks each float tensor that is in the result but not in the model. The plan must have it, with
/// a formula over constants of the model that gives it bit for bit.
pub fn check_new_tensors(model: &Model, fused: &Fused) -> Result<(), String> {
    let recomputed = fused.recompute(model).map_err(|error| error.to_string())?;
    let known = float_names(model);
    let made = fused.model.graph().initializer.iter();
    for tensor in made.filter(|tensor| is_float(tensor) && !known.contains(tensor.name())) {
        let name = tensor.name();
        let expected = recomputed.iter().find(|expected| expected.name() == name);
        let expected = expected.ok_or_else(|| format!("the plan does not tell of {name}"))?;
        // Large tensors are computed on demand.
        let bytes =
            tensor::raw(tensor, fused.model.externals()).map_err(|error| error.to_string())?;
        if tensor.dims != expected.dims || Some(&bytes) != expected.raw_data.as_ref() {
            return Err(format!("{name} is not what its formula gives"));
        }
    }
    Ok(())
}

/// The names of the initializers of floats of the main graph.
fn float_names(model: &Model) -> HashSet<&str> {
    let tensors = model.graph().initializer.iter();
    tensors
        .filter(|tensor| is_float(tensor))
        .map(|tensor| tensor.name())
        .collect()
}

/// The bodies of a node.
pub fn bodies(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    let attributes = node.attribute.iter();
    attributes.flat_map(|attribute| attribute.g.as_deref().into_iter().chain(&attribute.graphs))
}

/// The names of all values that a graph and its bodies read or have as outputs. Values that are
/// computed in bodies are included.
pub fn reads(graph: &GraphProto) -> HashSet<&str> {
    let mut names: HashSet<&str> = graph.output.iter().map(|output| output.name()).collect();
    for node in &graph.node {
        names.extend(
            node.input
                .iter()
                .map(String::as_str)
                .filter(|name| !name.is_empty()),
        );
        bodies(node).for_each(|body| collect_names(body, &mut names));
    }
    names
}

fn collect_names<'g>(body: &'g GraphProto, names: &mut HashSet<&'g str>) {
    for node in &body.node {
        names.extend(node.input.iter().chain(&node.output).map(String::as_str));
        bodies(node).for_each(|body| collect_names(body, names));
    }
    names.extend(body.output.iter().map(|output| output.name()));
    names.extend(body.initializer.iter().map(|tensor| tensor.name()));
}

/// The inferred extents of a value. An unknown extent is `None`. Returns `None` if the rank is
/// unknown.
pub fn extents(model: &Model, name: &str) -> Option<Vec<Option<usize>>> {
    let shape = unfold::infer_shapes(model).unwrap().remove(name)?.shape?;
    Some(shape.iter().map(extent).collect())
}

/// An inferred extent, if it is known.
pub fn extent(dim: &Option<Dim>) -> Option<usize> {
    match dim {
        Some(Dim::DimValue(extent)) => Some(*extent as usize),
        _ => None,
    }
}

fn is_float(tensor: &TensorProto) -> bool {
    tensor::data_type(tensor).is_ok_and(DataType::is_float)
}

/// Saves a model under a unique name in the folder that `UNFOLD_GRAPHS` names.
pub fn keep(model: &Model) {
    let Some(folder) = std::env::var_os("UNFOLD_GRAPHS") else {
        return;
    };
    let bytes = model.to_bytes().unwrap();
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let name = format!("{:016x}.onnx", hasher.finish());
    std::fs::write(std::path::Path::new(&folder).join(name), bytes).unwrap();
}

/// The value of an attribute.
#[derive(Debug, Clone)]
pub enum Attr {
    Int(i64),
    Float(f32),
    Text(String),
    Ints(Vec<i64>),
    Graph(Box<GraphProto>),
    Tensor(Box<TensorProto>),
}

impl From<i64> for Attr {
    fn from(value: i64) -> Self {
        Attr::Int(value)
    }
}

impl From<f32> for Attr {
    fn from(value: f32) -> Self {
        Attr::Float(value)
    }
}

impl From<&str> for Attr {
    fn from(value: &str) -> Self {
        Attr::Text(value.to_owned())
    }
}

impl From<Vec<i64>> for Attr {
    fn from(value: Vec<i64>) -> Self {
        Attr::Ints(value)
    }
}

impl From<GraphProto> for Attr {
    fn from(value: GraphProto) -> Self {
        Attr::Graph(Box::new(value))
    }
}

/// Attributes of a node.
pub type Attrs = Vec<(&'static str, Attr)>;

/// A node, named after its first output.
pub fn node(
    op: &str,
    inputs: &[impl AsRef<str>],
    outputs: &[impl AsRef<str>],
    attrs: Attrs,
) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        name: Some(format!(
            "{op}_{}",
            outputs.first().map_or("", |name| name.as_ref())
        )),
        input: inputs.iter().map(|name| name.as_ref().to_owned()).collect(),
        output: outputs
            .iter()
            .map(|name| name.as_ref().to_owned())
            .collect(),
        attribute: attrs
            .into_iter()
            .map(|(name, value)| attribute(name, value))
            .collect(),
        ..Default::default()
    }
}

/// An attribute.
pub fn attribute(name: &str, value: Attr) -> AttributeProto {
    let mut attribute = AttributeProto {
        name: Some(name.into()),
        ..Default::default()
    };
    let kind = match value {
        Attr::Int(value) => {
            attribute.i = Some(value);
            AttributeType::Int
        }
        Attr::Float(value) => {
            attribute.f = Some(value);
            AttributeType::Float
        }
        Attr::Text(value) => {
            attribute.s = Some(value.into());
            AttributeType::String
        }
        Attr::Ints(value) => {
            attribute.ints = value;
            AttributeType::Ints
        }
        Attr::Graph(value) => {
            attribute.g = Some(value);
            AttributeType::Graph
        }
        Attr::Tensor(value) => {
            attribute.t = Some(value);
            AttributeType::Tensor
        }
    };
    attribute.r#type = Some(kind.into());
    attribute
}

/// Declares a value. A dimension is a number, a symbol, or `?` for an extent without a name.
pub fn declared(name: &str, element: DataType, dims: &[&str]) -> ValueInfoProto {
    let dim = |text: &&str| {
        let value = match *text {
            "?" => None,
            text => Some(
                text.parse()
                    .map_or_else(|_| Dim::DimParam(text.into()), Dim::DimValue),
            ),
        };
        Dimension {
            value,
            denotation: None,
        }
    };
    let shape = TensorShapeProto {
        dim: dims.iter().map(dim).collect(),
    };
    ValueInfoProto {
        name: Some(name.into()),
        r#type: Some(TypeProto {
            tensor_type: Some(TensorType {
                elem_type: Some(element.code()),
                shape: Some(shape),
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Declares a value by its name, without a type.
pub fn undeclared(name: &str) -> ValueInfoProto {
    ValueInfoProto {
        name: Some(name.into()),
        ..Default::default()
    }
}

/// A float tensor.
pub fn floats(name: &str, values: &ArrayD<f64>) -> TensorProto {
    tensor::make(name, DataType::Float, &values.view()).unwrap()
}

/// Appends an operator that tract does not have to the first output.
pub fn beyond_tract(proto: &mut ModelProto) {
    let graph = proto.graph.get_or_insert_default();
    let output = graph.output[0].name().to_owned();
    let last = graph
        .node
        .iter_mut()
        .find(|node| node.output[0] == output)
        .unwrap();
    last.output[0] = "before".into();
    graph.node.push(NodeProto {
        input: vec!["before".into()],
        output: vec![output],
        op_type: Some("Mystery".into()),
        name: Some("last".into()),
        domain: Some("com.example".into()),
        ..Default::default()
    });
}

/// A model that is built node by node.
#[derive(Debug, Clone)]
pub struct Builder {
    pub proto: ModelProto,
    count: usize,
}

impl Builder {
    /// An empty graph under a version of the operator set.
    pub fn new(opset: i64) -> Self {
        let proto = ModelProto {
            ir_version: Some(8),
            opset_import: vec![OperatorSetIdProto {
                domain: None,
                version: Some(opset),
            }],
            graph: Some(GraphProto {
                name: Some("graph".into()),
                ..Default::default()
            }),
            ..Default::default()
        };
        Builder { proto, count: 0 }
    }

    /// The graph so far.
    pub fn graph(&mut self) -> &mut GraphProto {
        self.proto.graph.get_or_insert_default()
    }

    /// A new name.
    pub fn fresh(&mut self, stem: &str) -> String {
        self.count += 1;
        format!("{stem}{}", self.count)
    }

    /// A float input.
    pub fn input(&mut self, name: &str, dims: &[&str]) -> String {
        self.graph()
            .input
            .push(declared(name, DataType::Float, dims));
        name.to_owned()
    }

    /// A float initializer.
    pub fn constant(&mut self, values: &ArrayD<f64>) -> String {
        let name = self.fresh("c");
        self.graph().initializer.push(floats(&name, values));
        name
    }

    /// A list of integers as an initializer.
    pub fn ints(&mut self, values: &[i64]) -> String {
        let name = self.fresh("i");
        self.graph()
            .initializer
            .push(tensor::make_i64(&name, values));
        name
    }

    /// A node with one output, whose name it returns.
    pub fn op(&mut self, op: &str, inputs: &[&str], attrs: Attrs) -> String {
        self.op_many(op, inputs, attrs, 1).remove(0)
    }

    /// A node with several outputs.
    pub fn op_many(
        &mut self,
        op: &str,
        inputs: &[&str],
        attrs: Attrs,
        outputs: usize,
    ) -> Vec<String> {
        let names: Vec<String> = (0..outputs).map(|_| self.fresh("v")).collect();
        let outputs: Vec<&str> = names.iter().map(String::as_str).collect();
        let made = node(op, inputs, &outputs, attrs);
        self.graph().node.push(made);
        names
    }

    /// Makes a value an output of the model.
    pub fn output(&mut self, name: &str) {
        self.graph().output.push(undeclared(name));
    }

    /// The model with these outputs.
    pub fn model(mut self, outputs: &[&str]) -> Model {
        outputs.iter().for_each(|name| self.output(name));
        Model::from_proto(self.proto)
    }
}

/// The operators of a model, in order.
pub fn operators(model: &Model) -> Vec<&str> {
    model
        .graph()
        .node
        .iter()
        .map(|node| node.op_type())
        .collect()
}

/// An initializer by name.
pub fn initializer<'m>(model: &'m Model, name: &str) -> &'m TensorProto {
    model
        .graph()
        .initializer
        .iter()
        .find(|tensor| tensor.name() == name)
        .expect(name)
}

/// Stores initializers as another float type.
pub fn retype(model: &mut Model, names: &[&str], data_type: DataType) {
    for tensor in model
        .graph_mut()
        .initializer
        .iter_mut()
        .filter(|tensor| names.contains(&tensor.name()))
    {
        let values = tensor::read_f64(tensor, &Externals::none()).unwrap();
        *tensor = tensor::make(tensor.name(), data_type, &values.view()).unwrap();
    }
}
