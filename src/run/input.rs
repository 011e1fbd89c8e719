//! What a model asks for, and random values that suit it.

use std::collections::HashMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;
use tract_onnx::prelude::{DatumType, Tensor, f16};
use tract_onnx::tract_core::ndarray::ArrayD;

use super::dims::Dims;
use super::failure::{Failure, Stage};
use crate::onnx::Model;
use crate::onnx::operator::Category;
use crate::onnx::proto::{Dim, GraphProto, ValueInfoProto};
use crate::onnx::tensor::DataType;

/// An input of a model, as it is in one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Its name in the graph.
    pub name: String,
    /// The type of its elements.
    pub element: DatumType,
    /// Its shape, in which nothing is symbolic.
    pub shape: Vec<usize>,
    /// Where the elements are indices: how many there are to choose from.
    pub indices: Option<usize>,
}

impl Input {
    /// The inputs of a model that no initializer gives a value, in order, with symbolic dimensions fixed.
    ///
    /// Fails for an input that is no tensor, whose type tract does not have, whose rank is unknown, and for
    /// a name in `dims` that no input has.
    pub fn of(model: &Model, dims: &Dims) -> Result<Vec<Self>, Failure> {
        let graph = model.graph();
        let free: Vec<&ValueInfoProto> = graph
            .input
            .iter()
            .filter(|input| !graph.initializer.iter().any(|tensor| tensor.name() == input.name()))
            .collect();
        let sizes = sizes(&free, dims)?;
        free.into_iter().map(|input| Self::read(input, graph, &sizes)).collect()
    }

    /// The symbols of the first dimensions of the inputs: the sizes of the batch.
    pub fn batch_symbols(model: &Model) -> Vec<&str> {
        let mut symbols: Vec<&str> = model
            .graph()
            .input
            .iter()
            .filter_map(|input| input.r#type.as_ref()?.tensor_type.as_ref()?.shape.as_ref()?.dim.first())
            .filter_map(|dim| match &dim.value {
                Some(Dim::DimParam(symbol)) => Some(symbol.as_str()),
                _ => None,
            })
            .collect();
        symbols.sort_unstable();
        symbols.dedup();
        symbols
    }

    fn read(
        input: &ValueInfoProto,
        graph: &GraphProto,
        sizes: &HashMap<&str, usize>,
    ) -> Result<Self, Failure> {
        let name = input.name();
        let fail = |reason: String| Failure::new(Stage::Load, format!("the input `{name}` {reason}"));
        let tensor = input.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let tensor = tensor.ok_or_else(|| fail("is no tensor".into()))?;
        let element = DataType::from_code(tensor.elem_type());
        let element = element.and_then(datum).ok_or_else(|| match element {
            Some(element) => fail(format!("is of type {element}")),
            None => fail("has no known type".into()),
        })?;
        let shape = tensor.shape.as_ref().ok_or_else(|| fail("has no shape".into()))?;
        let rank = shape.dim.len();
        let size = |(axis, dim): (usize, &Option<Dim>)| match dim {
            Some(Dim::DimValue(size)) if *size >= 0 => *size as usize,
            Some(Dim::DimParam(symbol)) => sizes[symbol.as_str()],
            _ => Dims::default_for(None, axis, rank),
        };
        let shape = shape.dim.iter().map(|dim| &dim.value).enumerate().map(size).collect();
        let indices = (element.is_integer() && !element.is::<bool>()).then(|| rows(graph, name)).flatten();
        Ok(Self { name: name.to_owned(), element, shape, indices })
    }

    /// Values drawn for this input.
    ///
    /// Floats are drawn from the normal distribution, so that half of them are negative. Integers are
    /// indices into the table that they select from, or 0 and 1 where there is none, as in masks. Half of
    /// the booleans are true.
    fn draw(&self, rng: &mut ChaCha8Rng) -> Tensor {
        let end = self.indices.unwrap_or(2).max(1) as i64;
        match self.element {
            DatumType::F64 => self.fill(|| rng.sample::<f64, _>(StandardNormal)),
            DatumType::F16 => self.fill(|| f16::from_f32(rng.sample(StandardNormal))),
            DatumType::F32 => self.fill(|| rng.sample::<f32, _>(StandardNormal)),
            DatumType::Bool => self.fill(|| rng.random::<bool>()),
            DatumType::I8 => self.fill(|| rng.random_range(0..end.min(128)) as i8),
            DatumType::I16 => self.fill(|| rng.random_range(0..end.min(1 << 15)) as i16),
            DatumType::I32 => self.fill(|| rng.random_range(0..end) as i32),
            DatumType::U8 => self.fill(|| rng.random_range(0..end.min(256)) as u8),
            DatumType::U16 => self.fill(|| rng.random_range(0..end.min(1 << 16)) as u16),
            DatumType::U32 => self.fill(|| rng.random_range(0..end) as u32),
            DatumType::U64 => self.fill(|| rng.random_range(0..end) as u64),
            // `datum` lets nothing else in.
            _ => self.fill(|| rng.random_range(0..end)),
        }
    }

    fn fill<T: tract_onnx::prelude::Datum>(&self, mut value: impl FnMut() -> T) -> Tensor {
        ArrayD::from_shape_simple_fn(self.shape.as_slice(), &mut value).into()
    }
}

/// Random values for all inputs. The same seed gives the same values, whatever the machine.
pub fn random(inputs: &[Input], seed: u64) -> Vec<Tensor> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    inputs.iter().map(|input| input.draw(&mut rng)).collect()
}

/// The size of every symbol in the shapes of the inputs. Where a symbol appears twice, its first place
/// decides.
fn sizes<'a>(inputs: &[&'a ValueInfoProto], dims: &Dims) -> Result<HashMap<&'a str, usize>, Failure> {
    let mut sizes = HashMap::new();
    for input in inputs {
        let tensor = input.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
        let shape = tensor.and_then(|tensor| tensor.shape.as_ref()).map_or(&[][..], |shape| &shape.dim);
        for (axis, dim) in shape.iter().enumerate() {
            if let Some(Dim::DimParam(symbol)) = &dim.value {
                let default = || Dims::default_for(Some(symbol), axis, shape.len());
                sizes.entry(symbol.as_str()).or_insert_with(|| dims.get(symbol).unwrap_or_else(default));
            }
        }
    }
    match dims.iter().find(|(name, _)| !sizes.contains_key(name)) {
        None => Ok(sizes),
        Some((name, _)) => {
            let mut known: Vec<&str> = sizes.into_keys().collect();
            known.sort_unstable();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            let reason = format!("no input has a symbolic dimension `{name}`; those there are: {known}");
            Err(Failure::new(Stage::Load, reason))
        }
    }
}

/// The smallest constant table that the elements of a value select rows from.
///
/// Follows the value through operators that hand on the elements.
fn rows(graph: &GraphProto, value: &str) -> Option<usize> {
    let mut smallest: Option<usize> = None;
    let mut values = vec![value];
    // Nodes come after what they read, so that one pass finds every reader.
    for node in &graph.node {
        let data = node.input.first().map_or("", String::as_str);
        match node.op() {
            ("", "Gather") if node.input.get(1).is_some_and(|indices| values.contains(&indices.as_str())) => {
                let table = graph.initializer.iter().find(|tensor| tensor.name() == data);
                let axis = node.attr_i("axis").ok().flatten().unwrap_or(0);
                let size = table.and_then(|table| {
                    let axis = if axis < 0 { axis + table.dims.len() as i64 } else { axis };
                    table.dims.get(usize::try_from(axis).ok()?).and_then(|&size| usize::try_from(size).ok())
                });
                smallest = smallest.into_iter().chain(size).min();
            }
            operator if values.contains(&data) => {
                let hands_on = matches!(operator, ("", "Cast" | "Slice"));
                if hands_on || node.category() == Some(Category::Movement) {
                    values.extend(node.output.iter().map(String::as_str));
                }
            }
            _ => {}
        }
    }
    smallest
}

/// The types that inputs can have, as tract names them.
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
    use crate::run::testing::{affine, floats, model, node, value};

    fn embedding() -> Model {
        let table = floats("table", &ndarray::Array2::zeros((50, 4)).into_dyn().view());
        let ids = value("ids", DataType::Int64, &["batch", "length"]);
        let mask = value("mask", DataType::Int64, &["batch", "length"]);
        let nodes =
            vec![node("Identity ids -> same"), node("Gather table, same -> y"), node("Identity mask -> z")];
        model(vec![ids, mask], vec![table], nodes, &["y", "z"])
    }

    #[test]
    fn indices_stay_inside_their_table_and_masks_are_zero_or_one() {
        let inputs = Input::of(&embedding(), &"length=100".parse().unwrap()).unwrap();
        assert_eq!(inputs[0].shape, [2, 100]);
        assert_eq!((inputs[0].indices, inputs[1].indices), (Some(50), None));
        let tensors = random(&inputs, 1);
        let range = |tensor: &Tensor| {
            let view = tensor.try_as_plain_ram().unwrap();
            let values = view.as_slice::<i64>().unwrap();
            (*values.iter().min().unwrap(), *values.iter().max().unwrap())
        };
        let (smallest, largest) = range(&tensors[0]);
        assert!(smallest >= 0 && largest < 50 && largest > 30, "{smallest}..={largest}");
        assert_eq!(range(&tensors[1]), (0, 1));
    }

    #[test]
    fn a_seed_fixes_the_values_and_half_of_them_are_negative() {
        let inputs = Input::of(&affine([1.0; 3], [0.0; 3]), &"n=1000".parse().unwrap()).unwrap();
        let (first, again, other) = (random(&inputs, 7), random(&inputs, 7), random(&inputs, 8));
        assert_eq!(first, again);
        assert_ne!(first, other);
        let view = first[0].try_as_plain_ram().unwrap();
        let negative = view.as_slice::<f32>().unwrap().iter().filter(|&&value| value < 0.0).count();
        assert!((1400..1600).contains(&negative), "{negative}");
    }

    #[test]
    fn every_type_can_be_drawn() {
        for element in (1..=16).filter_map(DataType::from_code) {
            let inputs = vec![value("x", element, &["2", "5"])];
            let inputs = Input::of(&model(inputs, vec![], vec![], &["x"]), &Dims::default());
            let is_drawn = inputs.is_ok_and(|inputs| random(&inputs, 0)[0].shape() == [2, 5]);
            use DataType::{BFloat16, Complex64, Complex128, String};
            assert_eq!(is_drawn, ![BFloat16, Complex64, Complex128, String].contains(&element), "{element}");
        }
    }

    #[test]
    fn the_first_dimension_is_the_batch() {
        assert_eq!(Input::batch_symbols(&embedding()), ["batch"]);
    }

    #[test]
    fn a_dimension_that_does_not_exist_is_an_error() {
        let failure = Input::of(&embedding(), &"bacth=3".parse().unwrap()).unwrap_err();
        assert_eq!(
            failure.reason,
            "no input has a symbolic dimension `bacth`; those there are: batch, length"
        );
    }
}
