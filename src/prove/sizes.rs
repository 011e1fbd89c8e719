//! The sizes of open extents that a proof is made at, and the inputs at these.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{Proof, undecided};
use crate::onnx::Model;
use crate::onnx::proto::{GraphProto, ModelProto, TensorProto, ValueInfoProto};
use crate::onnx::tensor::DataType;
use crate::run::{Dims, Input, free, is_formula};

/// Batches that are tried, the first of which is what a batch is where nobody says more.
const BATCHES: [usize; 6] = [2, 3, 1, 4, 8, 16];

/// Sizes of other symbols that are tried behind those: strides of several layers want a multiple of theirs, and the layers
/// before an encoder of speech some hundred samples.
const OTHERS: [usize; 5] = [16, 64, 512, 2048, 8192];

/// How many of the extents that constants have are tried behind those.
const ASKED: usize = 4;

/// How many elements all inputs may have at a larger size than the first: each size that is tried takes as long as a proof.
const LARGER: u64 = 1 << 20;

/// The sizes that are given, and others for the batch, or for what else is open, where the first ones contradict each other.
pub fn sizes(model: &Model, given: &Dims) -> Vec<Dims> {
    let (mut batch, mut others): (Vec<Cow<str>>, Vec<Cow<str>>) = (vec![], vec![]);
    let light = numbers(model.graph());
    for symbols in free(&light).map(Input::symbols) {
        let rank = symbols.len();
        for (axis, name) in symbols.into_iter().enumerate() {
            // What is a formula of others follows from those.
            let Some(name) = name.filter(|name| given.get(name).is_none() && !is_formula(name)) else {
                continue;
            };
            let is_batch = Dims::default_for(Some(&name), axis, rank) == BATCHES[0];
            if is_batch { &mut batch } else { &mut others }.push(name);
        }
    }
    let with = |names: &[Cow<str>], size: usize| {
        let mut dims = given.clone();
        names.iter().for_each(|name| dims.set(name.clone(), size));
        dims
    };
    let is_small = |dims: &Dims| inputs(model, dims).is_ok_and(|inputs| elements(&inputs) <= LARGER);
    let tried = if batch.is_empty() { &BATCHES[..1] } else { &BATCHES[..] };
    let batches = tried.iter().map(|&size| (size, with(&batch, size)));
    let batches = batches.filter(|(size, dims)| *size <= BATCHES[0] || is_small(dims)).map(|(_, dims)| dims);
    let tried = if others.is_empty() { vec![] } else { [&OTHERS[..], &asked_for(model)].concat() };
    let mut sizes: Vec<Dims> =
        batches.chain(tried.into_iter().map(|size| with(&others, size)).filter(is_small)).collect();
    // One symbol may be what constants fit, and another anything.
    if others.len() > 1 {
        let alone = asked_for(model).into_iter().flat_map(|size| others.iter().map(move |name| (name, size)));
        sizes.extend(alone.map(|(name, size)| with(std::slice::from_ref(name), size)).filter(is_small));
    }
    sizes
}

/// The extents that most constants have, which an open one may have to be.
fn asked_for(model: &Model) -> Vec<usize> {
    let mut times: BTreeMap<usize, usize> = BTreeMap::new();
    let extents = model.graph().initializer.iter().flat_map(|tensor| &tensor.dims);
    for extent in extents.filter_map(|&extent| usize::try_from(extent).ok()) {
        *times.entry(extent).or_default() += 1;
    }
    let mut extents: Vec<(usize, usize)> = times.into_iter().filter(|&(extent, _)| extent > 1).collect();
    extents.sort_by_key(|&(extent, times)| (std::cmp::Reverse(times), extent));
    extents.into_iter().take(ASKED).map(|(extent, _)| extent).collect()
}

/// How many elements inputs have.
pub fn elements(inputs: &[Input]) -> u64 {
    let count = |input: &Input| input.shape.iter().fold(1_u64, |n, &extent| n.saturating_mul(extent as u64));
    inputs.iter().map(count).fold(0, u64::saturating_add)
}

/// The inputs whose sizes count, at these.
///
/// # Errors
/// That it is undecided, where there are none of these sizes.
pub fn inputs(model: &Model, dims: &Dims) -> Result<Vec<Input>, Proof> {
    let light = Model::from_proto(ModelProto { graph: Some(numbers(model.graph())), ..Default::default() });
    Input::of(&light, dims).map_err(|failure| undecided(failure.to_string()))
}

/// A graph of the inputs that are tensors of numbers, and of what those are where nobody gives them.
fn numbers(graph: &GraphProto) -> GraphProto {
    let number = |input: &ValueInfoProto| -> Option<ValueInfoProto> {
        let mut input = input.clone();
        let tensor = input.r#type.as_mut()?.tensor_type.as_mut()?;
        tensor.shape.as_ref()?;
        let element = DataType::from_code(tensor.elem_type())?;
        // Engines that have no bfloat16 have no say in this.
        let element = if element.is_float() { DataType::Float } else { element };
        tensor.elem_type = Some(element.code());
        (element.is_float() || (element.is_integer() && element.bits() >= Some(8))).then_some(input)
    };
    let name = |tensor: &TensorProto| TensorProto { name: tensor.name.clone(), ..Default::default() };
    GraphProto {
        input: graph.input.iter().filter_map(number).collect(),
        initializer: graph.initializer.iter().map(name).collect(),
        ..Default::default()
    }
}
