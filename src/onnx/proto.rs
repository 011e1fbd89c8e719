//! The messages of ONNX, as its specification defines them.
//!
//! Fields keep the specification's names and numbers. Optional fields are [`Option`]s, so that an
//! explicit default differs from an absent field. Fields of type `bytes` are slices of the decoded
//! buffer, and not copies.

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};

/// A model: the message that an `.onnx` file holds.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// The version of the file format.
    #[prost(int64, optional, tag = "1")]
    pub ir_version: Option<i64>,
    /// The tool that wrote the model.
    #[prost(string, optional, tag = "2")]
    pub producer_name: Option<String>,
    /// The version of that tool.
    #[prost(string, optional, tag = "3")]
    pub producer_version: Option<String>,
    /// The namespace of the model, as a reverse domain name.
    #[prost(string, optional, tag = "4")]
    pub domain: Option<String>,
    /// The version of the model itself.
    #[prost(int64, optional, tag = "5")]
    pub model_version: Option<i64>,
    /// A description for readers.
    #[prost(string, optional, tag = "6")]
    pub doc_string: Option<String>,
    /// The main graph.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// The operator sets that the graph uses.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Named metadata.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
    /// Graphs that train the model.
    #[prost(message, repeated, tag = "20")]
    pub training_info: Vec<TrainingInfoProto>,
    /// The functions that nodes may call.
    #[prost(message, repeated, tag = "25")]
    pub functions: Vec<FunctionProto>,
    /// The devices that nodes may be placed on.
    #[prost(message, repeated, tag = "26")]
    pub configuration: Vec<DeviceConfigurationProto>,
}

/// A graph: nodes in topological order, their constants, their inputs and outputs.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// The nodes in topological order.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// The name of the graph.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// The named constants.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// A description for readers.
    #[prost(string, optional, tag = "10")]
    pub doc_string: Option<String>,
    /// The inputs.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// The outputs.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    /// Types and shapes of intermediate values.
    #[prost(message, repeated, tag = "13")]
    pub value_info: Vec<ValueInfoProto>,
    /// The tensors that hold the scale and zero point of other tensors.
    #[prost(message, repeated, tag = "14")]
    pub quantization_annotation: Vec<TensorAnnotation>,
    /// The named constants that are stored sparse.
    #[prost(message, repeated, tag = "15")]
    pub sparse_initializer: Vec<SparseTensorProto>,
    /// Named metadata.
    #[prost(message, repeated, tag = "16")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

impl GraphProto {
    /// A copy of the graph without nodes and constants, for callers that replace both. A full copy
    /// would take as much memory as the model.
    pub(crate) fn frame(&self) -> Self {
        GraphProto {
            node: vec![],
            name: self.name.clone(),
            initializer: vec![],
            doc_string: self.doc_string.clone(),
            input: self.input.clone(),
            output: self.output.clone(),
            value_info: self.value_info.clone(),
            quantization_annotation: self.quantization_annotation.clone(),
            sparse_initializer: self.sparse_initializer.clone(),
            metadata_props: self.metadata_props.clone(),
        }
    }
}

/// A node: one application of an operator or function.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// The values that it reads; an empty name stands for an optional input that is left out.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// The values that it computes; an empty name stands for an optional output that is left out.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// The name of the node, if it has one.
    #[prost(string, optional, tag = "3")]
    pub name: Option<String>,
    /// The operator.
    #[prost(string, optional, tag = "4")]
    pub op_type: Option<String>,
    /// The attributes.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    /// A description for readers.
    #[prost(string, optional, tag = "6")]
    pub doc_string: Option<String>,
    /// The operator set of the operator.
    #[prost(string, optional, tag = "7")]
    pub domain: Option<String>,
    /// Selects one of several functions with the same name.
    #[prost(string, optional, tag = "8")]
    pub overload: Option<String>,
    /// Named metadata.
    #[prost(message, repeated, tag = "9")]
    pub metadata_props: Vec<StringStringEntryProto>,
    /// The placement of the node on devices, and the sharding of its tensors.
    #[prost(message, repeated, tag = "10")]
    pub device_configurations: Vec<NodeDeviceConfigurationProto>,
}

/// A named attribute of a node.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    /// The name.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// A float.
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    /// An integer.
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    /// A string, by convention UTF-8.
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub s: Option<Bytes>,
    /// A tensor.
    #[prost(message, optional, boxed, tag = "5")]
    pub t: Option<Box<TensorProto>>,
    /// A graph: the body of a control-flow operator.
    #[prost(message, optional, boxed, tag = "6")]
    pub g: Option<Box<GraphProto>>,
    /// Floats.
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub floats: Vec<f32>,
    /// Integers.
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    /// Strings.
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub strings: Vec<Bytes>,
    /// Tensors.
    #[prost(message, repeated, tag = "10")]
    pub tensors: Vec<TensorProto>,
    /// Graphs.
    #[prost(message, repeated, tag = "11")]
    pub graphs: Vec<GraphProto>,
    /// A description for readers.
    #[prost(string, optional, tag = "13")]
    pub doc_string: Option<String>,
    /// A type.
    #[prost(message, optional, boxed, tag = "14")]
    pub tp: Option<Box<TypeProto>>,
    /// Types.
    #[prost(message, repeated, tag = "15")]
    pub type_protos: Vec<TypeProto>,
    /// The field that holds the value.
    #[prost(enumeration = "AttributeType", optional, tag = "20")]
    pub r#type: Option<i32>,
    /// Inside a function, the attribute of the caller from which this one takes its value.
    #[prost(string, optional, tag = "21")]
    pub ref_attr_name: Option<String>,
    /// A sparse tensor.
    #[prost(message, optional, boxed, tag = "22")]
    pub sparse_tensor: Option<Box<SparseTensorProto>>,
    /// Sparse tensors.
    #[prost(message, repeated, tag = "23")]
    pub sparse_tensors: Vec<SparseTensorProto>,
}

/// A tensor: its shape, its element type, its elements.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// The shape.
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    /// The element type, as the code of a [`DataType`](super::tensor::DataType).
    #[prost(int32, optional, tag = "2")]
    pub data_type: Option<i32>,
    /// The segment of a larger tensor that this tensor is, if the larger one is stored in segments.
    #[prost(message, optional, tag = "3")]
    pub segment: Option<Segment>,
    /// Elements of type float or complex64.
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    /// Elements of type bool or integers of at most 32 bits, and small floats by their bits.
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    /// Elements of type string.
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub string_data: Vec<Bytes>,
    /// Elements of type int64.
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    /// The name.
    #[prost(string, optional, tag = "8")]
    pub name: Option<String>,
    /// Elements of any fixed-width type, little-endian, in row-major order.
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub raw_data: Option<Bytes>,
    /// Elements of type double or complex128.
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    /// Elements of type uint32 or uint64.
    #[prost(uint64, repeated, tag = "11")]
    pub uint64_data: Vec<u64>,
    /// A description for readers.
    #[prost(string, optional, tag = "12")]
    pub doc_string: Option<String>,
    /// The place of the elements, if they are in another file.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// Whether the elements are in another file.
    #[prost(enumeration = "DataLocation", optional, tag = "14")]
    pub data_location: Option<i32>,
    /// Named metadata.
    #[prost(message, repeated, tag = "16")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// A part of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct Segment {
    /// The index of its first element.
    #[prost(int64, optional, tag = "1")]
    pub begin: Option<i64>,
    /// The index after its last element.
    #[prost(int64, optional, tag = "2")]
    pub end: Option<i64>,
}

/// A sparse tensor, in coordinate format.
#[derive(Clone, PartialEq, Message)]
pub struct SparseTensorProto {
    /// The elements that are not zero; this tensor carries the name.
    #[prost(message, optional, tag = "1")]
    pub values: Option<TensorProto>,
    /// The places of these elements.
    #[prost(message, optional, tag = "2")]
    pub indices: Option<TensorProto>,
    /// The shape of the dense tensor.
    #[prost(int64, repeated, packed = "false", tag = "3")]
    pub dims: Vec<i64>,
}

/// Name and type of a value.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    /// The name.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// The type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
    /// A description for readers.
    #[prost(string, optional, tag = "3")]
    pub doc_string: Option<String>,
    /// Named metadata.
    #[prost(message, repeated, tag = "4")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// The type of a value. At most one of the `_type` fields is set.
///
/// They are separate fields instead of an enum, so that fields are encoded in the order of their
/// numbers.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    /// A tensor.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorType>,
    /// A sequence.
    #[prost(message, optional, boxed, tag = "4")]
    pub sequence_type: Option<Box<SequenceType>>,
    /// A map.
    #[prost(message, optional, boxed, tag = "5")]
    pub map_type: Option<Box<MapType>>,
    /// The meaning of the value.
    #[prost(string, optional, tag = "6")]
    pub denotation: Option<String>,
    /// A type that ONNX does not describe.
    #[prost(message, optional, tag = "7")]
    pub opaque_type: Option<OpaqueType>,
    /// A sparse tensor.
    #[prost(message, optional, tag = "8")]
    pub sparse_tensor_type: Option<SparseTensorType>,
    /// An optional.
    #[prost(message, optional, boxed, tag = "9")]
    pub optional_type: Option<Box<OptionalType>>,
}

/// The type of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorType {
    /// The code of the element type.
    #[prost(int32, optional, tag = "1")]
    pub elem_type: Option<i32>,
    /// The shape; if it is missing, the rank is unknown.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// The type of a sequence.
#[derive(Clone, PartialEq, Message)]
pub struct SequenceType {
    /// The type of its elements.
    #[prost(message, optional, tag = "1")]
    pub elem_type: Option<TypeProto>,
}

/// The type of a map.
#[derive(Clone, PartialEq, Message)]
pub struct MapType {
    /// The code of the element type of the keys.
    #[prost(int32, optional, tag = "1")]
    pub key_type: Option<i32>,
    /// The type of the values.
    #[prost(message, optional, tag = "2")]
    pub value_type: Option<TypeProto>,
}

/// The type of an optional.
#[derive(Clone, PartialEq, Message)]
pub struct OptionalType {
    /// The type of the elements.
    #[prost(message, optional, tag = "1")]
    pub elem_type: Option<TypeProto>,
}

/// The type of a sparse tensor.
#[derive(Clone, PartialEq, Message)]
pub struct SparseTensorType {
    /// The code of the element type.
    #[prost(int32, optional, tag = "1")]
    pub elem_type: Option<i32>,
    /// The shape; if it is missing, the rank is unknown.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// A type that ONNX does not describe.
#[derive(Clone, PartialEq, Message)]
pub struct OpaqueType {
    /// The domain of the type; if it is missing, the domain of the model.
    #[prost(string, optional, tag = "1")]
    pub domain: Option<String>,
    /// The name of the type.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

/// A shape.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    /// The dimensions.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

/// One dimension of a shape.
#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    /// The extent, if anything is known about it.
    #[prost(oneof = "Dim", tags = "1, 2")]
    pub value: Option<Dim>,
    /// The meaning of the dimension.
    #[prost(string, optional, tag = "3")]
    pub denotation: Option<String>,
}

/// A pair of strings.
#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    /// The key.
    #[prost(string, optional, tag = "1")]
    pub key: Option<String>,
    /// The value.
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
}

/// The version of an operator set.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    /// The domain of the operator set; ONNX's own if it is empty or missing.
    #[prost(string, optional, tag = "1")]
    pub domain: Option<String>,
    /// Its version.
    #[prost(int64, optional, tag = "2")]
    pub version: Option<i64>,
}

/// A function: an operator defined by a graph of others.
#[derive(Clone, PartialEq, Message)]
pub struct FunctionProto {
    /// The name.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// The names of its inputs.
    #[prost(string, repeated, tag = "4")]
    pub input: Vec<String>,
    /// The names of its outputs.
    #[prost(string, repeated, tag = "5")]
    pub output: Vec<String>,
    /// The names of the attributes that a caller must give.
    #[prost(string, repeated, tag = "6")]
    pub attribute: Vec<String>,
    /// The nodes of its body.
    #[prost(message, repeated, tag = "7")]
    pub node: Vec<NodeProto>,
    /// A description for readers.
    #[prost(string, optional, tag = "8")]
    pub doc_string: Option<String>,
    /// The operator sets that its body uses.
    #[prost(message, repeated, tag = "9")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// The domain of the operator set that it belongs to.
    #[prost(string, optional, tag = "10")]
    pub domain: Option<String>,
    /// The attributes that a caller may leave out, with their defaults.
    #[prost(message, repeated, tag = "11")]
    pub attribute_proto: Vec<AttributeProto>,
    /// Types and shapes of values in the body.
    #[prost(message, repeated, tag = "12")]
    pub value_info: Vec<ValueInfoProto>,
    /// Distinguishes several functions of that name.
    #[prost(string, optional, tag = "13")]
    pub overload: Option<String>,
    /// Named metadata.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// Graphs that train a model.
#[derive(Clone, PartialEq, Message)]
pub struct TrainingInfoProto {
    /// Computes the initial state.
    #[prost(message, optional, tag = "1")]
    pub initialization: Option<GraphProto>,
    /// Computes one training step.
    #[prost(message, optional, tag = "2")]
    pub algorithm: Option<GraphProto>,
    /// The output of `initialization` that sets each initializer.
    #[prost(message, repeated, tag = "3")]
    pub initialization_binding: Vec<StringStringEntryProto>,
    /// The output of `algorithm` that sets each initializer.
    #[prost(message, repeated, tag = "4")]
    pub update_binding: Vec<StringStringEntryProto>,
}

/// The tensors that hold the quantization parameters of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorAnnotation {
    /// The tensor.
    #[prost(string, optional, tag = "1")]
    pub tensor_name: Option<String>,
    /// The parameters, and the tensors that hold them.
    #[prost(message, repeated, tag = "2")]
    pub quant_parameter_tensor_names: Vec<StringStringEntryProto>,
}

/// A set of devices.
#[derive(Clone, PartialEq, Message)]
pub struct DeviceConfigurationProto {
    /// The name of the configuration.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// The number of devices.
    #[prost(int32, optional, tag = "2")]
    pub num_devices: Option<i32>,
    /// Their names.
    #[prost(string, repeated, tag = "3")]
    pub device: Vec<String>,
}

/// The placement of a node on a set of devices.
#[derive(Clone, PartialEq, Message)]
pub struct NodeDeviceConfigurationProto {
    /// The name of the configuration.
    #[prost(string, optional, tag = "1")]
    pub configuration_id: Option<String>,
    /// The sharding of its inputs and outputs.
    #[prost(message, repeated, tag = "2")]
    pub sharding_spec: Vec<ShardingSpecProto>,
    /// Its stage in a pipeline.
    #[prost(int32, optional, tag = "3")]
    pub pipeline_stage: Option<i32>,
}

/// The sharding of a tensor over devices.
#[derive(Clone, PartialEq, Message)]
pub struct ShardingSpecProto {
    /// The tensor.
    #[prost(string, optional, tag = "1")]
    pub tensor_name: Option<String>,
    /// The ids of the devices, or of the groups of devices.
    #[prost(int64, repeated, packed = "false", tag = "2")]
    pub device: Vec<i64>,
    /// The devices of each group.
    #[prost(message, repeated, tag = "3")]
    pub index_to_device_group_map: Vec<IntIntListEntryProto>,
    /// The sharded axes.
    #[prost(message, repeated, tag = "4")]
    pub sharded_dim: Vec<ShardedDimProto>,
}

/// The sharding of one axis.
#[derive(Clone, PartialEq, Message)]
pub struct ShardedDimProto {
    /// The axis.
    #[prost(int64, optional, tag = "1")]
    pub axis: Option<i64>,
    /// Its shards.
    #[prost(message, repeated, tag = "2")]
    pub simple_sharding: Vec<SimpleShardedDimProto>,
}

/// A dimension that is cut into shards.
#[derive(Clone, PartialEq, Message)]
pub struct SimpleShardedDimProto {
    /// The extent of the dimension.
    #[prost(oneof = "Dim", tags = "1, 2")]
    pub dim: Option<Dim>,
    /// The number of shards.
    #[prost(int64, optional, tag = "3")]
    pub num_shards: Option<i64>,
}

/// An integer key with a list of integers.
#[derive(Clone, PartialEq, Message)]
pub struct IntIntListEntryProto {
    /// The key.
    #[prost(int64, optional, tag = "1")]
    pub key: Option<i64>,
    /// The list.
    #[prost(int64, repeated, packed = "false", tag = "2")]
    pub value: Vec<i64>,
}

/// The extent of a dimension: an integer or a symbol.
#[derive(Clone, PartialEq, Eq, Hash, Oneof)]
pub enum Dim {
    /// An integer.
    #[prost(int64, tag = "1")]
    DimValue(i64),
    /// A symbol. Dimensions with equal symbols have equal extents.
    #[prost(string, tag = "2")]
    DimParam(String),
}

/// The field of an [`AttributeProto`] that holds its value.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Enumeration,
    strum::Display,
    strum::EnumString,
)]
#[strum(serialize_all = "snake_case")]
#[repr(i32)]
pub enum AttributeType {
    /// Unknown.
    Undefined = 0,
    /// `f`
    Float = 1,
    /// `i`
    Int = 2,
    /// `s`
    String = 3,
    /// `t`
    Tensor = 4,
    /// `g`
    Graph = 5,
    /// `floats`
    Floats = 6,
    /// `ints`
    Ints = 7,
    /// `strings`
    Strings = 8,
    /// `tensors`
    Tensors = 9,
    /// `graphs`
    Graphs = 10,
    /// `sparse_tensor`
    SparseTensor = 11,
    /// `sparse_tensors`
    SparseTensors = 12,
    /// `tp`
    TypeProto = 13,
    /// `type_protos`
    TypeProtos = 14,
}

/// The place of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum DataLocation {
    /// In the message.
    Default = 0,
    /// In another file.
    External = 1,
}
