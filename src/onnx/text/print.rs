//! Prints models in ONNX's textual syntax.

use std::fmt::{Display, LowerExp};

use super::{is_identifier, is_special_float, is_type_name};
use crate::error::Result;
use crate::onnx::Model;
use crate::onnx::element::DataType;
use crate::onnx::external_data::Externals;
use crate::onnx::proto::{
    AttributeProto, AttributeType, Dim, Dimension, FunctionProto, GraphProto, NodeProto,
    OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto,
};
use crate::onnx::tensor;

/// The tensors whose elements are printed. The elements of other tensors are printed as `...`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrintedElements {
    /// The elements of all tensors, so that the text can be parsed again.
    All,
    /// Tensors of at most this many elements.
    AtMost(usize),
}

/// Prints a whole model.
pub(super) fn model(model: &Model, elements: PrintedElements) -> Result<String> {
    let mut printer = Printer {
        text: String::new(),
        indent: 0,
        elements,
        externals: model.externals(),
    };
    printer.header(model);
    printer.graph(model.graph())?;
    for function in &model.proto.functions {
        printer.line("");
        printer.function(function)?;
    }
    printer.text.push('\n');
    Ok(printer.text)
}

struct Printer<'m> {
    text: String,
    /// The number of spaces at the beginning of a line.
    indent: usize,
    elements: PrintedElements,
    externals: &'m Externals,
}

impl Printer<'_> {
    fn header(&mut self, model: &Model) {
        let proto = &model.proto;
        let version = proto.ir_version.unwrap_or_default();
        let mut fields = vec![
            format!("ir_version: {version}"),
            format!("opset_import: {}", operator_sets(&proto.opset_import)),
        ];
        for (field, value) in [
            ("producer_name", &proto.producer_name),
            ("producer_version", &proto.producer_version),
            ("domain", &proto.domain),
            ("doc_string", &proto.doc_string),
        ] {
            fields.extend(
                value
                    .as_ref()
                    .map(|value| format!("{field}: {}", quoted(value))),
            );
        }
        let own_version = proto.model_version;
        fields.extend(own_version.map(|version| format!("model_version: {version}")));
        if !proto.metadata_props.is_empty() {
            fields.push(format!(
                "metadata_props: {}",
                entries(&proto.metadata_props)
            ));
        }
        self.text = format!("<\n   {}\n>\n", fields.join(",\n   "));
    }

    fn function(&mut self, function: &FunctionProto) -> Result<()> {
        let mut fields = vec![format!("domain: {}", quoted(function.domain()))];
        let overload = Some(function.overload()).filter(|overload| !overload.is_empty());
        fields.extend(overload.map(|overload| format!("overload: {}", quoted(overload))));
        fields.push(format!(
            "opset_import: {}",
            operator_sets(&function.opset_import)
        ));
        self.text
            .push_str(&format!("\n<\n   {}\n>\n", fields.join(",\n   ")));
        self.text.push_str(&name(function.name()));
        self.function_attributes(function)?;
        let (inputs, outputs) = (names(&function.input), names(&function.output));
        self.text.push_str(&format!(" ({inputs}) => ({outputs})"));
        let values: Vec<String> = function.value_info.iter().map(value_info).collect();
        self.values(values);
        self.nodes(&function.node)
    }

    fn function_attributes(&mut self, function: &FunctionProto) -> Result<()> {
        let mut separator = " <";
        for attribute in &function.attribute {
            self.text
                .push_str(&format!("{separator}{}", name(attribute)));
            separator = ", ";
        }
        for attribute in &function.attribute_proto {
            self.text.push_str(separator);
            self.attribute(attribute)?;
            separator = ", ";
        }
        if separator == ", " {
            self.text.push('>');
        }
        Ok(())
    }

    fn graph(&mut self, graph: &GraphProto) -> Result<()> {
        let inputs: Vec<String> = graph.input.iter().map(value_info).collect();
        let outputs: Vec<String> = graph.output.iter().map(value_info).collect();
        let (inputs, outputs) = (inputs.join(", "), outputs.join(", "));
        let graph_name = name(graph.name());
        self.text
            .push_str(&format!("{graph_name} ({inputs}) => ({outputs})"));
        let mut values = vec![];
        for initializer in &graph.initializer {
            values.push(self.initializer(initializer)?);
        }
        values.extend(graph.value_info.iter().map(value_info));
        self.values(values);
        self.nodes(&graph.node)
    }

    /// Prints initializers and types of values, one per line.
    fn values(&mut self, values: Vec<String>) {
        let mut opening = '<';
        let count = values.len();
        for (i, value) in values.into_iter().enumerate() {
            let end = if i + 1 == count { '>' } else { ',' };
            self.line(&format!("   {opening}{value}{end}"));
            opening = ' ';
        }
    }

    fn nodes(&mut self, nodes: &[NodeProto]) -> Result<()> {
        self.line("{");
        self.indent += 3;
        for node in nodes {
            self.node(node)?;
        }
        self.indent -= 3;
        self.line("}");
        Ok(())
    }

    fn node(&mut self, node: &NodeProto) -> Result<()> {
        let label = node
            .name
            .as_ref()
            .map(|label| format!("[{}] ", name(label)));
        let domain = Some(node.domain()).filter(|domain| !domain.is_empty());
        let operator = [domain.as_slice(), &[node.op_type()]].concat().join(".");
        let overload = Some(node.overload()).filter(|overload| !overload.is_empty());
        let overload = overload.map(|overload| format!(":{overload}"));
        self.line(&format!(
            "{}{} = {operator}{}",
            label.unwrap_or_default(),
            names(&node.output),
            overload.unwrap_or_default(),
        ));
        // Attributes with bodies follow the inputs, so that the inputs stay visible.
        let inputs = format!(" ({})", names(&node.input));
        let has_body = node
            .attribute
            .iter()
            .any(|one| one.g.is_some() || !one.graphs.is_empty());
        if has_body {
            self.text.push_str(&inputs);
        }
        let mut separator = " <";
        for attribute in &node.attribute {
            self.text.push_str(separator);
            self.attribute(attribute)?;
            separator = ", ";
        }
        if !node.attribute.is_empty() {
            self.text.push('>');
        }
        if !has_body {
            self.text.push_str(&inputs);
        }
        Ok(())
    }

    fn attribute(&mut self, attribute: &AttributeProto) -> Result<()> {
        let kind = type_of(attribute);
        self.text
            .push_str(&format!("{}: {kind} = ", attribute.name()));
        if let Some(referenced) = &attribute.ref_attr_name {
            self.text.push_str(&format!("@{}", name(referenced)));
            return Ok(());
        }
        let value = match kind {
            AttributeType::Int => attribute.i().to_string(),
            AttributeType::Float => number(attribute.f()),
            AttributeType::String => quoted_bytes(attribute.s()),
            AttributeType::Ints => list(attribute.ints.iter().map(i64::to_string)),
            AttributeType::Floats => list(attribute.floats.iter().copied().map(number)),
            AttributeType::Strings => list(attribute.strings.iter().map(|s| quoted_bytes(s))),
            AttributeType::TypeProtos => list(attribute.type_protos.iter().map(value_type)),
            AttributeType::TypeProto => attribute.tp.as_deref().map(value_type).unwrap_or_default(),
            AttributeType::Tensor | AttributeType::Tensors => self.tensors(attribute)?,
            AttributeType::Graph | AttributeType::Graphs => return self.bodies(attribute),
            _ => "...".to_owned(),
        };
        self.text.push_str(&value);
        Ok(())
    }

    /// Prints the tensor of an attribute, or its list of tensors.
    fn tensors(&self, attribute: &AttributeProto) -> Result<String> {
        if let Some(tensor) = &attribute.t {
            return self.tensor(tensor, " ");
        }
        let tensors = attribute
            .tensors
            .iter()
            .map(|tensor| self.tensor(tensor, " "));
        let tensors: Vec<String> = tensors.collect::<Result<_>>()?;
        Ok(list(tensors.into_iter()))
    }

    /// Prints the graph of an attribute, or its list of graphs.
    fn bodies(&mut self, attribute: &AttributeProto) -> Result<()> {
        self.indent += 3;
        if let Some(body) = &attribute.g {
            self.graph(body)?;
        } else {
            let mut separator = "[";
            for body in &attribute.graphs {
                self.text.push_str(separator);
                self.graph(body)?;
                separator = ", ";
            }
            self.text.push_str(if attribute.graphs.is_empty() {
                "[]"
            } else {
                "]"
            });
        }
        self.indent -= 3;
        Ok(())
    }

    fn initializer(&self, initializer: &TensorProto) -> Result<String> {
        self.tensor(initializer, " = ")
    }

    /// Prints the type, the name and the elements of a tensor.
    fn tensor(&self, tensor: &TensorProto, separator: &str) -> Result<String> {
        let data_type = tensor::data_type(tensor)?;
        let mut text = data_type.name();
        if !tensor.dims.is_empty() {
            text.push_str(&list(tensor.dims.iter().map(i64::to_string)).replace(' ', ""));
        }
        if !tensor.name().is_empty() {
            text.push_str(&format!(" {}", name(tensor.name())));
        }
        let elements = self.elements_of(tensor, data_type)?;
        Ok(format!("{text}{separator}{elements}"))
    }

    fn elements_of(&self, tensor: &TensorProto, data_type: DataType) -> Result<String> {
        let extents = tensor.dims.iter().map(|&extent| extent.max(0) as usize);
        let count = extents.fold(1, usize::saturating_mul);
        let is_printed = match self.elements {
            PrintedElements::All => true,
            PrintedElements::AtMost(limit) => count <= limit,
        };
        if !is_printed {
            return Ok("...".to_owned());
        }
        let elements = if data_type == DataType::String {
            tensor.string_data.iter().map(|s| quoted_bytes(s)).collect()
        } else {
            numbers(data_type, &tensor::raw(tensor, self.externals)?)
        };
        Ok(format!("{{{}}}", elements.join(", ")))
    }

    /// Begins a line with `text`.
    fn line(&mut self, text: &str) {
        self.text.push('\n');
        self.text.push_str(&" ".repeat(self.indent));
        self.text.push_str(text);
    }
}

/// The type of an attribute. If the file omits the type, as old files do, the field that is set
/// determines it.
fn type_of(attribute: &AttributeProto) -> AttributeType {
    let declared = AttributeType::try_from(attribute.r#type.unwrap_or_default());
    match declared {
        Ok(kind) if kind != AttributeType::Undefined => kind,
        _ if attribute.f.is_some() => AttributeType::Float,
        _ if attribute.i.is_some() => AttributeType::Int,
        _ if attribute.s.is_some() => AttributeType::String,
        _ if attribute.t.is_some() => AttributeType::Tensor,
        _ if attribute.g.is_some() => AttributeType::Graph,
        _ if !attribute.floats.is_empty() => AttributeType::Floats,
        _ if !attribute.ints.is_empty() => AttributeType::Ints,
        _ if !attribute.strings.is_empty() => AttributeType::Strings,
        _ if !attribute.graphs.is_empty() => AttributeType::Graphs,
        _ => AttributeType::Tensors,
    }
}

fn value_info(value: &ValueInfoProto) -> String {
    let kind = value.r#type.as_ref().map(value_type).unwrap_or_default();
    [kind, name(value.name())].join(" ").trim_start().to_owned()
}

fn value_type(kind: &TypeProto) -> String {
    if let Some(tensor) = &kind.tensor_type {
        tensor_type(tensor.elem_type(), tensor.shape.as_ref())
    } else if let Some(sequence) = &kind.sequence_type {
        format!("seq({})", inner_type(&sequence.elem_type))
    } else if let Some(map) = &kind.map_type {
        format!(
            "map({}, {})",
            element_type(map.key_type()),
            inner_type(&map.value_type)
        )
    } else if let Some(optional) = &kind.optional_type {
        format!("optional({})", inner_type(&optional.elem_type))
    } else if let Some(sparse) = &kind.sparse_tensor_type {
        let dense = tensor_type(sparse.elem_type(), sparse.shape.as_ref());
        format!("sparse_tensor({dense})")
    } else if let Some(opaque) = &kind.opaque_type {
        let words = [opaque.domain(), opaque.name()];
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        format!("opaque({})", words.join(", "))
    } else {
        String::new()
    }
}

/// The type inside a sequence, a map or an optional; empty if it is missing.
fn inner_type(kind: &Option<TypeProto>) -> String {
    kind.as_ref().map(value_type).unwrap_or_default()
}

/// Prints an element type with extents. A scalar has no extents, and `[]` stands for an unknown
/// rank.
fn tensor_type(code: i32, shape: Option<&TensorShapeProto>) -> String {
    let extents = match shape {
        None => "[]".to_owned(),
        Some(shape) if shape.dim.is_empty() => String::new(),
        Some(shape) => {
            let extents: Vec<String> = shape.dim.iter().map(extent).collect();
            format!("[{}]", extents.join(","))
        }
    };
    element_type(code) + &extents
}

fn element_type(code: i32) -> String {
    DataType::from_code(code).map_or_else(|| "undefined".to_owned(), DataType::name)
}

fn extent(dimension: &Dimension) -> String {
    match &dimension.value {
        Some(Dim::DimValue(extent)) => extent.to_string(),
        Some(Dim::DimParam(symbol)) => name(symbol),
        None => "?".to_owned(),
    }
}

fn operator_sets(sets: &[OperatorSetIdProto]) -> String {
    list(
        sets.iter()
            .map(|set| format!("{} : {}", quoted(set.domain()), set.version())),
    )
}

fn entries(entries: &[StringStringEntryProto]) -> String {
    let pairs = entries.iter();
    list(pairs.map(|pair| format!("{}: {}", quoted(pair.key()), quoted(pair.value()))))
}

fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    format!("[{}]", items.join(", "))
}

fn names(all: &[String]) -> String {
    let all: Vec<String> = all.iter().map(|one| name(one)).collect();
    all.join(", ")
}

/// Prints a name, in quotes if it could be parsed as something else.
fn name(name: &str) -> String {
    if is_identifier(name) && !is_type_name(name) && !is_special_float(name) {
        name.to_owned()
    } else {
        quoted(name)
    }
}

fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

fn quoted_bytes(bytes: &[u8]) -> String {
    quoted(&String::from_utf8_lossy(bytes))
}

/// Prints little-endian elements as numbers.
fn numbers(data_type: DataType, bytes: &[u8]) -> Vec<String> {
    use DataType::*;
    match data_type {
        Float | Complex64 => each(bytes, |word| number(f32::from_le_bytes(word))),
        Double | Complex128 => each(bytes, |word| number(f64::from_le_bytes(word))),
        Int64 => each(bytes, |word| i64::from_le_bytes(word).to_string()),
        Uint64 => each(bytes, |word| u64::from_le_bytes(word).to_string()),
        Int32 => each(bytes, |word| i32::from_le_bytes(word).to_string()),
        Uint32 => each(bytes, |word| u32::from_le_bytes(word).to_string()),
        Int16 => each(bytes, |word| i16::from_le_bytes(word).to_string()),
        Uint16 | Float16 | BFloat16 => each(bytes, |word| u16::from_le_bytes(word).to_string()),
        Int8 => each(bytes, |word| i8::from_le_bytes(word).to_string()),
        _ => bytes.iter().map(u8::to_string).collect(),
    }
}

fn each<const WIDTH: usize>(bytes: &[u8], print: impl Fn([u8; WIDTH]) -> String) -> Vec<String> {
    let (words, _) = bytes.as_chunks::<WIDTH>();
    words.iter().map(|&word| print(word)).collect()
}

/// Prints a float as the shortest text that parses to the same float.
fn number<T: Display + LowerExp + Into<f64> + Copy>(value: T) -> String {
    let wide: f64 = value.into();
    if wide.is_nan() {
        return if wide.is_sign_negative() {
            "-nan"
        } else {
            "nan"
        }
        .to_owned();
    }
    let magnitude = wide.abs();
    if magnitude != 0.0 && magnitude.is_finite() && !(1e-4..1e7).contains(&magnitude) {
        format!("{value:e}")
    } else {
        value.to_string()
    }
}
