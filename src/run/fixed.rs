//! Fixes dimensions: replaces symbols by sizes in the declared shapes of a model.
//!
//! ```text
//! ids [batch, tokens] -> logits [batch, tokens, 100]      ids [2, 16] -> logits [2, 16, 100]
//! ```
//!
//! Only declarations change. But once the extents of the inputs are known, the shape arithmetic of
//! the graph is constant, and constant folding removes it.

use std::borrow::Cow;
use std::collections::HashMap;

use super::dims::Dims;
use super::formula;
use super::input::{Input, dims_mut, free, listed, symbol};
use crate::analysis::Analysis;
use crate::error::{Error, Result};
use crate::onnx::Model;
use crate::onnx::proto::{Dim, Dimension, GraphProto};
use crate::shape::facts::extent;

/// The sizes of dimensions, by the names that [`Input::symbols`] gives them.
type DimensionSizes<'s> = HashMap<Cow<'s, str>, usize>;

/// Returns the model with sizes for some dimensions of its inputs. The other dimensions stay open.
/// Dimensions of outputs are fixed too if they follow from the fixed dimensions of inputs.
///
/// # Errors
/// If no input has a dimension with one of these names, if a size is 0, or if the graph is invalid.
pub(crate) fn fixed(model: &Model, dims: &Dims) -> Result<Model> {
    let names: Vec<Cow<str>> = free(model.graph())
        .flat_map(Input::symbols)
        .flatten()
        .collect();
    for (name, size) in dims.iter() {
        let reason = if !names.iter().any(|known| known == name) {
            format!(
                "no input has a symbolic dimension of this name; those there are: {}",
                listed(&names)
            )
        } else if size == 0 {
            "a size is at least 1".to_owned()
        } else {
            continue;
        };
        return Err(Error::Fix {
            name: name.to_owned(),
            reason,
        });
    }
    let sizes: DimensionSizes = dims
        .iter()
        .map(|(name, size)| (Cow::Borrowed(name), size))
        .collect();
    let mut result = model.clone();
    fix_inputs(result.graph_mut(), &sizes);
    let graph = result.graph_mut();
    for dim in graph
        .value_info
        .iter_mut()
        .chain(&mut graph.output)
        .flat_map(dims_mut)
    {
        fix(dim, &sizes);
    }
    fix_outputs(&mut result)?;
    Ok(result)
}

/// Writes sizes into the declarations of inputs. The name of a dimension without a symbol is its
/// place, such as `x:2`.
fn fix_inputs(graph: &mut GraphProto, sizes: &DimensionSizes) {
    for input in &mut graph.input {
        let names = Input::symbols(input)
            .into_iter()
            .map(|name| name.map(Cow::into_owned));
        let names: Vec<Option<String>> = names.collect();
        for (name, dim) in names.iter().zip(dims_mut(input)) {
            let place = name.as_ref().and_then(|name| sizes.get(name.as_str()));
            match place {
                Some(&size) => dim.value = Some(Dim::DimValue(size as i64)),
                None => fix(dim, sizes),
            }
        }
    }
}

/// Fixes a dimension whose symbol has a size, or whose formula consists of symbols with sizes.
fn fix(dim: &mut Dimension, sizes: &DimensionSizes) {
    let Some(name) = symbol(dim) else { return };
    if let Some(size) = sizes
        .get(name)
        .copied()
        .or_else(|| formula::size(name, sizes))
    {
        dim.value = Some(Dim::DimValue(size as i64));
    }
}

/// Writes the extents of outputs that are known now that dimensions of inputs are fixed.
fn fix_outputs(model: &mut Model) -> Result<()> {
    let known = extents_of_outputs(model)?;
    for (output, extents) in model.graph_mut().output.iter_mut().zip(known) {
        let dims: Vec<&mut Dimension> = dims_mut(output).collect();
        let has_rank = dims.len() == extents.len();
        for (dim, extent) in dims.into_iter().zip(extents).filter(|_| has_rank) {
            let is_open = !matches!(dim.value, Some(Dim::DimValue(0..)));
            if let Some(extent) = extent.filter(|_| is_open) {
                dim.value = Some(Dim::DimValue(extent as i64));
            }
        }
    }
    Ok(())
}

/// For each output, the list of its extents, with `None` for each unknown extent. The list is empty
/// if the rank of the output is unknown.
fn extents_of_outputs(model: &Model) -> Result<Vec<Vec<Option<usize>>>> {
    let Analysis { graph, facts, .. } = &Analysis::new(model)?;
    let mut known = vec![];
    for output in &model.graph().output {
        let shape = graph
            .value(output.name())
            .and_then(|value| facts.shape(value));
        known.push(shape.iter().flatten().map(extent).collect());
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::ValueInfoProto;
    use crate::onnx::tensor::DataType;
    use crate::run::testing::{affine, model, node, value};

    /// The declared shape, as a list of numbers and symbols.
    fn shape(value: &ValueInfoProto) -> Vec<String> {
        let tensor = value.r#type.as_ref().unwrap().tensor_type.as_ref().unwrap();
        let shape = tensor.shape.as_ref().unwrap();
        shape
            .dim
            .iter()
            .map(|dim| match &dim.value {
                Some(Dim::DimValue(size)) => size.to_string(),
                Some(Dim::DimParam(name)) => name.clone(),
                None => String::new(),
            })
            .collect()
    }

    /// A model that concatenates a cache with new tokens.
    fn cached() -> Model {
        let inputs = vec![
            value("past", DataType::Float, &["batch", "before"]),
            value("new", DataType::Float, &["batch", "tokens"]),
            value("mask", DataType::Float, &["batch", "before + tokens"]),
        ];
        let mut concat = node("Concat past, new -> all");
        concat.attribute.push(crate::ir::builder::int("axis", 1));
        let mut model = model(
            inputs,
            vec![],
            vec![concat, node("Mul all, mask -> y")],
            &["y"],
        );
        model.graph_mut().output = vec![value("y", DataType::Float, &["batch", "unk__0"])];
        model
    }

    #[test]
    fn fixed_symbols_formulas_and_outputs_become_numbers() {
        let fixed = fixed(&cached(), &"batch=2,before=3,tokens=4".parse().unwrap()).unwrap();
        let shapes: Vec<_> = fixed
            .graph()
            .input
            .iter()
            .chain(&fixed.graph().output)
            .map(shape)
            .collect();
        assert_eq!(shapes, [["2", "3"], ["2", "4"], ["2", "7"], ["2", "7"]]);
    }

    #[test]
    fn dimension_without_a_size_stays_symbolic() {
        let fixed = fixed(&cached(), &"batch=2".parse().unwrap()).unwrap();
        let shapes: Vec<_> = fixed
            .graph()
            .input
            .iter()
            .chain(&fixed.graph().output)
            .map(shape)
            .collect();
        assert_eq!(
            shapes[..3],
            [["2", "before"], ["2", "tokens"], ["2", "before + tokens"]]
        );
        assert_eq!(shapes[3][0], "2");
        assert!(shapes[3][1].parse::<usize>().is_err());
    }

    #[test]
    fn unknown_name_and_size_0_are_errors() {
        let model = affine([1.0; 3], [0.0; 3]);
        let mut zero = Dims::default();
        zero.set("n", 0);
        let cases = [
            (
                "m=2".parse().unwrap(),
                "--fix `m`: no input has a symbolic dimension of this name; those there are: n",
            ),
            (zero, "--fix `n`: a size is at least 1"),
        ];
        for (dims, expected) in cases {
            let error = fixed(&model, &dims).err().unwrap();
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn a_fixed_batch_is_no_open_dimension() {
        let model = Model::open("models/digits/un-dynamo.onnx").unwrap();
        let name = Input::batch_symbols(&model)[0].to_string();
        let batched = fixed(&model, &format!("{name}=4").parse().unwrap()).unwrap();
        let symbols = Input::symbols(&batched.graph().input[0]);
        assert!(symbols.iter().all(Option::is_none));
    }
}
