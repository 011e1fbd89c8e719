//! Parses models in ONNX's textual syntax. Each function parses one rule of the grammar.

use std::str::FromStr;

use bytes::Bytes;

use super::lexer::{Lexer, Number};
use super::{is_special_float, is_type_name};
use crate::error::Result;
use crate::onnx::element::DataType;
use crate::onnx::proto::{
    AttributeProto, AttributeType, DataLocation, Dim, Dimension, FunctionProto, GraphProto,
    MapType, ModelProto, NodeProto, OpaqueType, OperatorSetIdProto, OptionalType, SequenceType,
    SparseTensorType, StringStringEntryProto, TensorProto, TensorShapeProto, TensorType, TypeProto,
    ValueInfoProto,
};

/// The maximum depth of nested bodies.
const MAX_DEPTH: usize = 60;

/// Parses a whole model.
pub(super) fn model(text: &str) -> Result<ModelProto> {
    let mut parser = Parser {
        lexer: Lexer::new(text),
        depth: 0,
    };
    parser.model()
}

struct Parser<'t> {
    lexer: Lexer<'t>,
    /// The number of bodies that enclose the current position.
    depth: usize,
}

impl Parser<'_> {
    fn model(&mut self) -> Result<ModelProto> {
        let mut model = ModelProto::default();
        if self.lexer.takes("<") {
            self.list(">", |parser| parser.model_field(&mut model))?;
        }
        model.graph = Some(self.graph()?);
        while self.lexer.peek().is_some() {
            model.functions.push(self.function()?);
        }
        Ok(model)
    }

    fn model_field(&mut self, model: &mut ModelProto) -> Result<()> {
        let field = self.field()?;
        match field.as_str() {
            "ir_version" => model.ir_version = Some(self.lexer.integer()?),
            "opset_import" => model.opset_import = self.operator_sets()?,
            "producer_name" => model.producer_name = Some(self.lexer.quoted()?),
            "producer_version" => model.producer_version = Some(self.lexer.quoted()?),
            "domain" => model.domain = Some(self.lexer.quoted()?),
            "model_version" => model.model_version = Some(self.lexer.integer()?),
            "doc_string" => model.doc_string = Some(self.lexer.quoted()?),
            "metadata_props" => model.metadata_props = self.entries()?,
            _ => return self.lexer.error(&format!("unknown field `{field}`")),
        }
        Ok(())
    }

    fn function(&mut self) -> Result<FunctionProto> {
        let mut function = FunctionProto::default();
        if self.lexer.takes("<") {
            self.list(">", |parser| parser.function_field(&mut function))?;
        }
        function.name = Some(self.lexer.name()?);
        if self.lexer.takes("<") {
            self.list(">", |parser| parser.function_attribute(&mut function))?;
        }
        function.input = self.function_values(&mut function.value_info)?;
        self.lexer.expect("=>")?;
        function.output = self.function_values(&mut function.value_info)?;
        if self.lexer.takes("<") {
            self.list(">", |parser| {
                function.value_info.push(parser.value_info()?);
                Ok(())
            })?;
        }
        function.node = self.nodes()?;
        Ok(function)
    }

    fn function_field(&mut self, function: &mut FunctionProto) -> Result<()> {
        let field = self.field()?;
        match field.as_str() {
            "opset_import" => function.opset_import = self.operator_sets()?,
            "doc_string" => function.doc_string = Some(self.lexer.quoted()?),
            "domain" => function.domain = Some(self.lexer.quoted()?),
            "overload" => function.overload = Some(self.lexer.quoted()?),
            _ => return self.lexer.error(&format!("unknown field `{field}`")),
        }
        Ok(())
    }

    /// Parses an attribute of a function, which is a name with or without a default value.
    fn function_attribute(&mut self, function: &mut FunctionProto) -> Result<()> {
        let name = self.lexer.name()?;
        if matches!(self.lexer.peek(), Some(':' | '=')) {
            function.attribute_proto.push(self.attribute(name)?);
        } else {
            function.attribute.push(name);
        }
        Ok(())
    }

    /// Parses the inputs or outputs of a function, which are names with optional types.
    fn function_values(&mut self, types: &mut Vec<ValueInfoProto>) -> Result<Vec<String>> {
        let mut names = vec![];
        self.lexer.expect("(")?;
        self.list(")", |parser| {
            let value = parser.value_info()?;
            names.push(value.name().to_owned());
            types.extend(value.r#type.is_some().then_some(value));
            Ok(())
        })?;
        Ok(names)
    }

    fn graph(&mut self) -> Result<GraphProto> {
        if self.depth == MAX_DEPTH {
            return self.lexer.error("too many bodies within bodies");
        }
        self.depth += 1;
        let mut graph = GraphProto {
            name: Some(self.lexer.name()?),
            ..GraphProto::default()
        };
        self.lexer.expect("(")?;
        self.list(")", |parser| {
            let value = parser.value_info()?;
            if let Some(default) = parser.initializer(&value)? {
                graph.initializer.push(default);
            }
            graph.input.push(value);
            Ok(())
        })?;
        self.lexer.expect("=>")?;
        self.lexer.expect("(")?;
        self.list(")", |parser| {
            graph.output.push(parser.value_info()?);
            Ok(())
        })?;
        if self.lexer.takes("<") {
            self.list(">", |parser| parser.value_or_initializer(&mut graph))?;
        }
        graph.node = self.nodes()?;
        self.depth -= 1;
        Ok(graph)
    }

    fn value_or_initializer(&mut self, graph: &mut GraphProto) -> Result<()> {
        let value = self.value_info()?;
        match self.initializer(&value)? {
            Some(tensor) => graph.initializer.push(tensor),
            None => graph.value_info.push(value),
        }
        Ok(())
    }

    /// Parses the elements of an initializer, if `=` follows the name of a value.
    fn initializer(&mut self, value: &ValueInfoProto) -> Result<Option<TensorProto>> {
        if !self.lexer.takes("=") {
            return Ok(None);
        }
        let declared = value.r#type.clone().unwrap_or_default();
        let tensor = self.tensor(value.name().to_owned(), &declared)?;
        Ok(Some(tensor))
    }

    /// Parses a name, possibly preceded by a type.
    fn value_info(&mut self) -> Result<ValueInfoProto> {
        let has_type = is_type_name(self.lexer.peek_identifier());
        let r#type = has_type.then(|| self.value_type()).transpose()?;
        let name = Some(self.lexer.name()?);
        Ok(ValueInfoProto {
            name,
            r#type,
            ..ValueInfoProto::default()
        })
    }

    fn value_type(&mut self) -> Result<TypeProto> {
        let word = self.lexer.identifier()?;
        let mut result = TypeProto::default();
        match word {
            "seq" => {
                let elem_type = Some(self.type_in_parentheses()?);
                result.sequence_type = Some(Box::new(SequenceType { elem_type }));
            }
            "optional" => {
                let elem_type = Some(self.type_in_parentheses()?);
                result.optional_type = Some(Box::new(OptionalType { elem_type }));
            }
            "map" => result.map_type = Some(Box::new(self.map_type()?)),
            "sparse_tensor" => {
                let TensorType { elem_type, shape } =
                    self.type_in_parentheses()?.tensor_type.unwrap_or_default();
                result.sparse_tensor_type = Some(SparseTensorType { elem_type, shape });
            }
            "opaque" => result.opaque_type = Some(self.opaque_type()?),
            _ => {
                let elem_type = Some(self.data_type(word)?.code());
                let shape = self.shape()?;
                result.tensor_type = Some(TensorType { elem_type, shape });
            }
        }
        Ok(result)
    }

    fn type_in_parentheses(&mut self) -> Result<TypeProto> {
        self.lexer.expect("(")?;
        let inner = self.value_type()?;
        self.lexer.expect(")")?;
        Ok(inner)
    }

    fn map_type(&mut self) -> Result<MapType> {
        self.lexer.expect("(")?;
        let key = self.lexer.identifier()?;
        let key_type = Some(self.data_type(key)?.code());
        self.lexer.expect(",")?;
        let value_type = Some(self.value_type()?);
        self.lexer.expect(")")?;
        Ok(MapType {
            key_type,
            value_type,
        })
    }

    /// Parses the part of an opaque type after `opaque`: `()`, `(name)` or `(domain, name)`.
    fn opaque_type(&mut self) -> Result<OpaqueType> {
        self.lexer.expect("(")?;
        let mut words = vec![];
        while self.lexer.peek() != Some(')') {
            words.push(self.qualified_name()?);
            self.lexer.takes(",");
        }
        self.lexer.expect(")")?;
        let name = words.pop();
        Ok(OpaqueType {
            domain: words.pop(),
            name,
        })
    }

    fn data_type(&mut self, word: &str) -> Result<DataType> {
        DataType::from_str(word)
            .or_else(|_| self.lexer.error(&format!("unknown element type `{word}`")))
    }

    /// Parses the extents after an element type. A scalar has none, and `[]` stands for an unknown
    /// rank.
    fn shape(&mut self) -> Result<Option<TensorShapeProto>> {
        if !self.lexer.takes("[") {
            return Ok(Some(TensorShapeProto::default()));
        }
        let mut dim = vec![];
        self.list("]", |parser| {
            dim.push(parser.dimension()?);
            Ok(())
        })?;
        Ok((!dim.is_empty()).then_some(TensorShapeProto { dim }))
    }

    fn dimension(&mut self) -> Result<Dimension> {
        let value = if self.lexer.takes("?") {
            None
        } else if self.lexer.is_at_name() {
            Some(Dim::DimParam(self.lexer.name()?))
        } else {
            Some(Dim::DimValue(self.lexer.integer()?))
        };
        Ok(Dimension {
            value,
            denotation: None,
        })
    }

    fn nodes(&mut self) -> Result<Vec<NodeProto>> {
        self.lexer.expect("{")?;
        let mut nodes = vec![];
        while !self.lexer.takes("}") {
            if self.lexer.peek().is_none() {
                return self.lexer.unexpected("`}`");
            }
            nodes.push(self.node()?);
        }
        Ok(nodes)
    }

    fn node(&mut self) -> Result<NodeProto> {
        let mut node = NodeProto::default();
        if self.lexer.takes("[") {
            node.name = Some(self.lexer.name()?);
            self.lexer.expect("]")?;
        }
        node.output = self.names()?;
        self.lexer.expect("=")?;
        let operator = self.qualified_name()?;
        let (domain, op_type) = operator.rsplit_once('.').unwrap_or(("", &operator));
        node.domain = Some(domain.to_owned()).filter(|domain| !domain.is_empty());
        node.op_type = Some(op_type.to_owned());
        if self.lexer.takes(":") {
            node.overload = Some(self.lexer.identifier()?.to_owned());
        }
        self.attributes(&mut node)?;
        self.lexer.expect("(")?;
        node.input = self.names()?;
        self.lexer.expect(")")?;
        self.attributes(&mut node)?;
        Ok(node)
    }

    /// Parses names separated by commas. An absent input or output has an empty name.
    fn names(&mut self) -> Result<Vec<String>> {
        let mut names = vec![];
        while self.lexer.is_at_name() {
            names.push(self.lexer.name()?);
            if !self.lexer.takes(",") {
                break;
            }
        }
        Ok(names)
    }

    fn qualified_name(&mut self) -> Result<String> {
        let mut name = self.lexer.identifier()?.to_owned();
        while self.lexer.takes(".") {
            name.push('.');
            name.push_str(self.lexer.identifier()?);
        }
        Ok(name)
    }

    fn attributes(&mut self, node: &mut NodeProto) -> Result<()> {
        if !self.lexer.takes("<") {
            return Ok(());
        }
        self.list(">", |parser| {
            let name = parser.lexer.identifier()?.to_owned();
            node.attribute.push(parser.attribute(name)?);
            Ok(())
        })
    }

    /// Parses the type and the value after the name of an attribute.
    fn attribute(&mut self, name: String) -> Result<AttributeProto> {
        let mut attribute = AttributeProto {
            name: Some(name),
            ..AttributeProto::default()
        };
        let mut declared = None;
        if self.lexer.takes(":") {
            let word = self.lexer.identifier()?;
            let Ok(kind) = AttributeType::from_str(word) else {
                return self
                    .lexer
                    .error(&format!("unknown attribute type `{word}`"));
            };
            declared = Some(kind);
        }
        self.lexer.expect("=")?;
        let kind = if self.lexer.takes("@") {
            attribute.ref_attr_name = Some(self.lexer.name()?);
            declared
        } else if self.lexer.takes("[") {
            Some(self.values(&mut attribute, declared)?)
        } else {
            Some(self.value(&mut attribute, declared)?)
        };
        attribute.r#type = kind.map(|kind| kind as i32);
        Ok(attribute)
    }

    /// Parses a list of values, after its opening bracket.
    fn values(
        &mut self,
        attribute: &mut AttributeProto,
        declared: Option<AttributeType>,
    ) -> Result<AttributeType> {
        let mut kind = declared;
        let element = declared.and_then(element_of);
        self.list("]", |parser| {
            let mut one = AttributeProto::default();
            let found = parser.value(&mut one, element)?;
            attribute.ints.extend(one.i);
            attribute.floats.extend(one.f);
            attribute.strings.extend(one.s);
            attribute.tensors.extend(one.t.map(|tensor| *tensor));
            attribute.graphs.extend(one.g.map(|graph| *graph));
            attribute.type_protos.extend(one.tp.map(|inner| *inner));
            kind = kind.or(list_of(found));
            Ok(())
        })?;
        match kind {
            Some(kind) => Ok(kind),
            None => self.lexer.error("an empty list needs a type"),
        }
    }

    /// Parses one value of the declared type. Without a declared type, the type follows from the
    /// syntax.
    fn value(
        &mut self,
        attribute: &mut AttributeProto,
        declared: Option<AttributeType>,
    ) -> Result<AttributeType> {
        let kind = match declared {
            Some(kind) => kind,
            None => self.apparent_type(),
        };
        match kind {
            AttributeType::Float => attribute.f = Some(self.lexer.float()?),
            AttributeType::Int => attribute.i = Some(self.lexer.integer()?),
            AttributeType::String => attribute.s = Some(Bytes::from(self.lexer.quoted()?)),
            AttributeType::Graph => attribute.g = Some(Box::new(self.graph()?)),
            AttributeType::Tensor => attribute.t = Some(Box::new(self.named_tensor()?)),
            AttributeType::TypeProto => return self.type_or_tensor(attribute, declared),
            AttributeType::Undefined => return self.number(attribute),
            _ => return self.lexer.unexpected("a list"),
        }
        Ok(kind)
    }

    /// Parses an integer or a float, depending on the syntax.
    fn number(&mut self, attribute: &mut AttributeProto) -> Result<AttributeType> {
        match self.lexer.number()? {
            Number::Int(value) => {
                attribute.i = Some(value);
                Ok(AttributeType::Int)
            }
            Number::Float(value) => {
                attribute.f = Some(value);
                Ok(AttributeType::Float)
            }
        }
    }

    /// The type of the next value according to its syntax; [`AttributeType::Undefined`] for a
    /// number.
    fn apparent_type(&mut self) -> AttributeType {
        let word = self.lexer.peek_identifier();
        match self.lexer.peek() {
            Some('"') => AttributeType::String,
            _ if is_type_name(word) => AttributeType::TypeProto,
            _ if is_special_float(word) => AttributeType::Float,
            _ if !word.is_empty() => AttributeType::Graph,
            _ => AttributeType::Undefined,
        }
    }

    /// Parses a type, or a tensor if elements follow.
    fn type_or_tensor(
        &mut self,
        attribute: &mut AttributeProto,
        declared: Option<AttributeType>,
    ) -> Result<AttributeType> {
        let r#type = self.value_type()?;
        let has_elements = matches!(self.lexer.peek(), Some('{' | '=')) || self.lexer.is_at_name();
        if declared.is_some() || !has_elements {
            attribute.tp = Some(Box::new(r#type));
            return Ok(AttributeType::TypeProto);
        }
        attribute.t = Some(Box::new(self.tensor_of_type(&r#type)?));
        Ok(AttributeType::Tensor)
    }

    fn named_tensor(&mut self) -> Result<TensorProto> {
        let r#type = self.value_type()?;
        self.tensor_of_type(&r#type)
    }

    fn tensor_of_type(&mut self, r#type: &TypeProto) -> Result<TensorProto> {
        let name = if self.lexer.is_at_name() {
            self.lexer.name()?
        } else {
            String::new()
        };
        self.lexer.takes("=");
        self.tensor(name, r#type)
    }

    /// Parses the elements of a tensor, or the entries of its external data.
    fn tensor(&mut self, name: String, r#type: &TypeProto) -> Result<TensorProto> {
        let Some(declared) = &r#type.tensor_type else {
            return self.lexer.error("only a tensor has elements");
        };
        let data_type = DataType::from_code(declared.elem_type()).unwrap_or(DataType::Float);
        let mut tensor = TensorProto {
            dims: self.extents(declared)?,
            data_type: Some(data_type.code()),
            name: Some(name).filter(|name| !name.is_empty()),
            ..TensorProto::default()
        };
        if self.lexer.peek() == Some('[') {
            tensor.external_data = self.entries()?;
            tensor.data_location = Some(DataLocation::External as i32);
            return Ok(tensor);
        }
        self.lexer.expect("{")?;
        if data_type == DataType::String {
            self.list("}", |parser| {
                tensor.string_data.push(parser.lexer.quoted()?.into());
                Ok(())
            })?;
            self.check_count(&tensor, data_type, tensor.string_data.len())?;
        } else {
            let mut bytes = vec![];
            self.list("}", |parser| parser.element(data_type, &mut bytes))?;
            self.check_count(&tensor, data_type, bytes.len())?;
            tensor.raw_data = Some(bytes.into());
        }
        Ok(tensor)
    }

    /// The extents of a tensor, which must all be integers.
    fn extents(&mut self, declared: &TensorType) -> Result<Vec<i64>> {
        let Some(shape) = &declared.shape else {
            return self.lexer.error("the shape of a tensor needs numbers");
        };
        let mut extents = vec![];
        for dim in &shape.dim {
            match dim.value {
                Some(Dim::DimValue(extent)) if extent >= 0 => extents.push(extent),
                _ => return self.lexer.error("the shape of a tensor needs numbers"),
            }
        }
        Ok(extents)
    }

    /// Parses one element, and appends its bytes.
    fn element(&mut self, data_type: DataType, bytes: &mut Vec<u8>) -> Result<()> {
        use DataType::*;
        match data_type {
            Float | Complex64 => bytes.extend(self.lexer.float::<f32>()?.to_le_bytes()),
            Double | Complex128 => bytes.extend(self.lexer.float::<f64>()?.to_le_bytes()),
            Int64 => bytes.extend(self.lexer.integer::<i64>()?.to_le_bytes()),
            Uint64 => bytes.extend(self.lexer.integer::<u64>()?.to_le_bytes()),
            Int32 => bytes.extend(self.lexer.integer::<i32>()?.to_le_bytes()),
            Uint32 => bytes.extend(self.lexer.integer::<u32>()?.to_le_bytes()),
            Int16 => bytes.extend(self.lexer.integer::<i16>()?.to_le_bytes()),
            Uint16 | Float16 | BFloat16 => {
                bytes.extend(self.lexer.integer::<u16>()?.to_le_bytes());
            }
            Int8 => bytes.extend(self.lexer.integer::<i8>()?.to_le_bytes()),
            _ => bytes.push(self.lexer.integer::<u8>()?),
        }
        Ok(())
    }

    /// Compares the number of found elements with the shape. For strings, `found` counts elements,
    /// and for other types it counts bytes.
    fn check_count(&self, tensor: &TensorProto, data_type: DataType, found: usize) -> Result<()> {
        let extents = tensor.dims.iter().map(|&extent| extent as usize);
        let count = extents.fold(1, usize::saturating_mul);
        let expected = match data_type {
            DataType::String => Some(count),
            _ => data_type.byte_size(count),
        };
        if expected == Some(found) {
            return Ok(());
        }
        let width = data_type.bits().unwrap_or(8).div_ceil(8);
        let found = found
            / if data_type == DataType::String {
                1
            } else {
                width
            };
        let elements = if found == 1 { "element" } else { "elements" };
        let name = tensor.name();
        self.lexer.error(&format!(
            "`{name}` has {found} {elements}, and its shape has {count}"
        ))
    }

    /// Parses the name of a field and the following colon.
    fn field(&mut self) -> Result<String> {
        let name = self.lexer.identifier()?.to_owned();
        if self.lexer.peek() != Some(':') {
            return self.lexer.unexpected("`:`").map(|()| name);
        }
        self.lexer.takes(":");
        Ok(name)
    }

    fn operator_sets(&mut self) -> Result<Vec<OperatorSetIdProto>> {
        let mut sets = vec![];
        self.lexer.expect("[")?;
        self.list("]", |parser| {
            let domain = Some(parser.lexer.quoted()?).filter(|domain| !domain.is_empty());
            parser.lexer.expect(":")?;
            let version = Some(parser.lexer.integer()?);
            sets.push(OperatorSetIdProto { domain, version });
            Ok(())
        })?;
        Ok(sets)
    }

    /// Parses a list of pairs of strings.
    fn entries(&mut self) -> Result<Vec<StringStringEntryProto>> {
        let mut entries = vec![];
        self.lexer.expect("[")?;
        self.list("]", |parser| {
            let key = Some(parser.lexer.quoted()?);
            parser.lexer.expect(":")?;
            let value = Some(parser.lexer.quoted()?);
            entries.push(StringStringEntryProto { key, value });
            Ok(())
        })?;
        Ok(entries)
    }

    /// Parses items separated by commas, up to the closing token.
    fn list(&mut self, close: &str, mut item: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        if self.lexer.takes(close) {
            return Ok(());
        }
        loop {
            item(self)?;
            if self.lexer.takes(close) {
                return Ok(());
            }
            if !self.lexer.takes(",") {
                return self.lexer.unexpected(&format!("`{close}`"));
            }
        }
    }
}

/// The type of the elements of a list attribute; `None` if `list` is not the type of a list.
fn element_of(list: AttributeType) -> Option<AttributeType> {
    LISTS
        .iter()
        .find(|(_, many)| *many == list)
        .map(|(one, _)| *one)
}

/// The type of a list attribute with elements of the given type; `None` if no list has such
/// elements.
fn list_of(element: AttributeType) -> Option<AttributeType> {
    LISTS
        .iter()
        .find(|(one, _)| *one == element)
        .map(|(_, many)| *many)
}

const LISTS: [(AttributeType, AttributeType); 6] = [
    (AttributeType::Float, AttributeType::Floats),
    (AttributeType::Int, AttributeType::Ints),
    (AttributeType::String, AttributeType::Strings),
    (AttributeType::Tensor, AttributeType::Tensors),
    (AttributeType::Graph, AttributeType::Graphs),
    (AttributeType::TypeProto, AttributeType::TypeProtos),
];
