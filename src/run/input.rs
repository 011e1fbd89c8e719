//! The inputs of a model, with the types and sizes of one run.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use tract_onnx::prelude::DatumType;

use super::dims::Dims;
use super::failure::{Failure, Stage};
use super::formula;
use crate::onnx::Model;
use crate::onnx::operator::Category;
use crate::onnx::proto::{Dim, Dimension, GraphProto, ValueInfoProto};
use crate::onnx::tensor::DataType;

/// An input of a model, with its type and shape in one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Its name in the graph.
    pub name: String,
    /// The type of its elements.
    pub element: DatumType,
    /// Its concrete shape.
    pub shape: Vec<usize>,
    /// The number of rows of the table that the elements index, if they are indices.
    pub indices: Option<usize>,
}

impl Input {
    /// The inputs of a model that have no initializer, in the order of the graph. Their symbolic
    /// dimensions get the sizes in `dims` or default sizes.
    ///
    /// # Errors
    /// If an input is not a tensor, has a type that tract lacks or an unknown rank, or if a name in
    /// `dims` is not an open dimension of an input.
    pub fn from_model(model: &Model, dims: &Dims) -> Result<Vec<Self>, Failure> {
        let graph = model.graph();
        let free: Vec<&ValueInfoProto> = free(graph).collect();
        let sizes = sizes(&free, dims)?;
        free.into_iter()
            .map(|input| Self::read(input, graph, &sizes))
            .collect()
    }

    /// The names of the open dimensions of an input. The name is the symbol of the dimension, or
    /// its place such as `x:2` if it has no symbol. `None` for a dimension with a size. A `?` is
    /// not a symbol, because exporters write it for every unnamed dimension.
    pub(crate) fn symbols(input: &ValueInfoProto) -> Vec<Option<Cow<'_, str>>> {
        let dims = dims(input).iter().enumerate();
        dims.map(|(axis, dim)| match (&dim.value, symbol(dim)) {
            (Some(Dim::DimValue(0..)), _) => None,
            (_, Some(symbol)) => Some(Cow::Borrowed(symbol)),
            (_, None) => Some(Cow::Owned(format!("{}:{axis}", input.name()))),
        })
        .collect()
    }

    /// The size of each open dimension of the inputs. The size is taken from `dims`, or is a
    /// default. The name of a dimension without a symbol is its place, such as `x:2`.
    ///
    /// # Errors
    /// If a name in `dims` is not an open dimension of an input.
    pub fn sizes(model: &Model, dims: &Dims) -> Result<Dims, Failure> {
        let free: Vec<&ValueInfoProto> = free(model.graph()).collect();
        let mut all = Dims::default();
        sizes(&free, dims)?
            .into_iter()
            .for_each(|(name, size)| all.set(name, size));
        Ok(all)
    }

    /// The names of the first dimensions of the inputs, which are usually the batch.
    pub(crate) fn batch_symbols(model: &Model) -> Vec<Cow<'_, str>> {
        let mut symbols: Vec<Cow<str>> = free(model.graph())
            .filter_map(|input| Self::symbols(input).into_iter().next()?)
            .collect();
        symbols.sort_unstable();
        symbols.dedup();
        symbols
    }

    fn read(
        input: &ValueInfoProto,
        graph: &GraphProto,
        sizes: &HashMap<Cow<str>, usize>,
    ) -> Result<Self, Failure> {
        let name = input.name();
        let tensor = input.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let tensor = tensor.ok_or_else(|| failure(name, "is no tensor"))?;
        let element = match DataType::from_code(tensor.elem_type()) {
            None => return Err(failure(name, "has no known type")),
            Some(element) => {
                datum(element).ok_or_else(|| failure(name, &format!("is of type {element}")))?
            }
        };
        let Some(shape) = &tensor.shape else {
            return Err(failure(name, "has no shape"));
        };
        let shape: Vec<usize> = Self::symbols(input)
            .into_iter()
            .zip(&shape.dim)
            .map(|(name, dim)| match (name, &dim.value) {
                (Some(name), _) => sizes[&name],
                (None, Some(Dim::DimValue(size))) => *size as usize,
                (None, _) => 0,
            })
            .collect();
        let indices = (element.is_integer() && !element.is::<bool>())
            .then(|| rows(graph, name))
            .flatten();
        Ok(Self {
            name: name.to_owned(),
            element,
            shape,
            indices,
        })
    }
}

fn failure(input: &str, reason: &str) -> Failure {
    Failure::new(Stage::Load, format!("the input `{input}` {reason}"))
}

/// The inputs that have no initializer.
pub(crate) fn free(graph: &GraphProto) -> impl Iterator<Item = &ValueInfoProto> {
    graph.input.iter().filter(|input| {
        let mut stored = graph.initializer.iter();
        !stored.any(|tensor| tensor.name() == input.name())
    })
}

/// Writes the concrete shapes of the inputs into their declarations, and the sizes of the inputs'
/// symbols into the declarations of all other values, because for some values the declaration is
/// the only source of their extents.
#[cfg(any(feature = "prove", feature = "tract"))]
pub(crate) fn fix_shapes(graph: &mut GraphProto, inputs: &[Input]) {
    let mut sizes: HashMap<String, i64> = HashMap::new();
    for input in inputs {
        let declared = graph
            .input
            .iter_mut()
            .find(|declared| declared.name() == input.name);
        for (dim, &size) in declared.into_iter().flat_map(dims_mut).zip(&input.shape) {
            if let Some(symbol) = symbol(dim) {
                sizes.entry(symbol.to_owned()).or_insert(size as i64);
            }
            dim.value = Some(Dim::DimValue(size as i64));
        }
    }
    for dim in graph
        .value_info
        .iter_mut()
        .chain(&mut graph.output)
        .flat_map(dims_mut)
    {
        if let Some(&size) = symbol(dim).and_then(|symbol| sizes.get(symbol)) {
            dim.value = Some(Dim::DimValue(size));
        }
    }
}

/// The symbol of a dimension. `None` for an empty name and for `?`, because dimensions with these
/// names need not have equal sizes.
pub(super) fn symbol(dim: &Dimension) -> Option<&str> {
    match &dim.value {
        Some(Dim::DimParam(symbol)) if !["", "?"].contains(&symbol.as_str()) => Some(symbol),
        _ => None,
    }
}

/// The declared dimensions of a value.
fn dims(value: &ValueInfoProto) -> &[Dimension] {
    let tensor = value
        .r#type
        .as_ref()
        .and_then(|declared| declared.tensor_type.as_ref());
    tensor
        .and_then(|tensor| tensor.shape.as_ref())
        .map_or(&[], |shape| &shape.dim)
}

/// The declared dimensions of a value, mutable.
pub(super) fn dims_mut(value: &mut ValueInfoProto) -> impl Iterator<Item = &mut Dimension> {
    let tensor = value
        .r#type
        .as_mut()
        .and_then(|declared| declared.tensor_type.as_mut());
    tensor
        .and_then(|tensor| tensor.shape.as_mut())
        .into_iter()
        .flat_map(|shape| &mut shape.dim)
}

/// The size of every symbol in the shapes of the inputs. If a symbol without a given size occurs
/// several times, the position of its first occurrence decides its default size. A symbol may be a
/// formula such as `past + sequence`, for the total length of a cache and new tokens. The size of
/// such a symbol is the value of the formula.
fn sizes<'a>(
    inputs: &[&'a ValueInfoProto],
    given: &Dims,
) -> Result<HashMap<Cow<'a, str>, usize>, Failure> {
    let mut sizes: HashMap<Cow<str>, usize> = HashMap::new();
    for input in inputs {
        let dims = dims(input);
        for (axis, (name, dim)) in Input::symbols(input).into_iter().zip(dims).enumerate() {
            let Some(name) = name else { continue };
            let size = given
                .get(&name)
                .unwrap_or_else(|| Dims::default_for(symbol(dim), axis, dims.len()));
            sizes.entry(name).or_insert(size);
        }
    }
    let formulas = sizes.keys().filter(|name| given.get(name).is_none());
    let computed: Vec<_> = formulas
        .filter_map(|name| Some((name.clone(), formula::size(name, &sizes)?)))
        .collect();
    sizes.extend(computed);
    match given.iter().find(|(name, _)| !sizes.contains_key(*name)) {
        None => Ok(sizes),
        Some((name, _)) => {
            let names: Vec<Cow<str>> = sizes.into_keys().collect();
            let names = listed(&names);
            let reason =
                format!("no input has a symbolic dimension `{name}`; those there are: {names}");
            Err(Failure::new(Stage::Load, reason))
        }
    }
}

/// The names of dimensions as text, sorted and without duplicates.
pub(super) fn listed(names: &[Cow<str>]) -> String {
    let names: BTreeSet<&str> = names.iter().map(AsRef::as_ref).collect();
    match names.is_empty() {
        true => "none".to_owned(),
        false => names.into_iter().collect::<Vec<_>>().join(", "),
    }
}

/// The number of rows of the constant table that the elements of a value index. If the elements
/// index several tables, the smallest table counts. `None` if the elements index no constant table.
///
/// The search follows the value through operators that keep its elements.
fn rows(graph: &GraphProto, value: &str) -> Option<usize> {
    let mut smallest: Option<usize> = None;
    let mut values = vec![value];
    // The nodes are in topological order, so one pass over them finds every reader.
    for node in &graph.node {
        let data = node.input.first().map_or("", String::as_str);
        match node.op() {
            ("", "Gather")
                if node
                    .input
                    .get(1)
                    .is_some_and(|indices| values.contains(&indices.as_str())) =>
            {
                let table = graph
                    .initializer
                    .iter()
                    .find(|tensor| tensor.name() == data);
                let axis = node.attr_i("axis").ok().flatten().unwrap_or(0);
                let size = table.and_then(|table| {
                    let axis = if axis < 0 {
                        axis + table.dims.len() as i64
                    } else {
                        axis
                    };
                    table
                        .dims
                        .get(usize::try_from(axis).ok()?)
                        .and_then(|&size| usize::try_from(size).ok())
                });
                smallest = smallest.into_iter().chain(size).min();
            }
            operator if values.contains(&data) => {
                let keeps_elements = matches!(operator, ("", "Cast" | "Slice"));
                if keeps_elements || node.category() == Some(Category::Movement) {
                    values.extend(node.output.iter().map(String::as_str));
                }
            }
            _ => {}
        }
    }
    smallest
}

/// The type in tract for an element type of an input; `None` if inputs cannot have this type.
fn datum(element: DataType) -> Option<DatumType> {
    Some(match element {
        DataType::Float => DatumType::F32,
        DataType::Double => DatumType::F64,
        DataType::Float16 => DatumType::F16,
        DataType::Bool => DatumType::Bool,
        DataType::Int8 => DatumType::I8,
        DataType::Int16 => DatumType::I16,
        DataType::Int32 => DatumType::I32,
        DataType::Int64 => DatumType::I64,
        DataType::Uint8 => DatumType::U8,
        DataType::Uint16 => DatumType::U16,
        DataType::Uint32 => DatumType::U32,
        DataType::Uint64 => DatumType::U64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::testing::embedding;

    #[test]
    fn first_dimension_is_the_batch() {
        assert_eq!(Input::batch_symbols(&embedding()), ["batch"]);
    }

    #[test]
    fn unnamed_dimension_is_addressed_by_position() {
        let dims = [
            None,
            Some(Dim::DimValue(3)),
            Some(Dim::DimParam("?".into())),
            Some(Dim::DimValue(-1)),
        ];
        let mut model = embedding();
        let input = &mut model.graph_mut().input[0];
        let name = input.name().to_owned();
        let tensor = input.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap();
        tensor.shape.as_mut().unwrap().dim = dims
            .map(|value| Dimension {
                value,
                ..Default::default()
            })
            .to_vec();
        let sizes = format!("{name}:2=48");
        for (sizes, expected) in [("", [2, 3, 224, 224]), (&sizes, [2, 3, 48, 224])] {
            let inputs = Input::from_model(&model, &sizes.parse().unwrap()).unwrap();
            assert_eq!(inputs[0].shape, expected);
        }
        assert!(Input::batch_symbols(&model).contains(&format!("{name}:0").into()));
        assert!(Input::from_model(&model, &format!("{name}:1=5").parse().unwrap()).is_err());
    }

    #[test]
    fn unknown_dimension_is_an_error() {
        let failure = Input::from_model(&embedding(), &"bacth=3".parse().unwrap()).unwrap_err();
        assert_eq!(
            failure.reason,
            "no input has a symbolic dimension `bacth`; those there are: batch, length"
        );
    }
}
