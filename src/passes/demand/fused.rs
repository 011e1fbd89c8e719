//! Splits a product with several readers if some readers need fewer places than others.
//!
//! Before: one product `x·W + b` of queries, keys and values, whose columns a Reshape and a Split,
//! Slices or Gathers split into parts. After: one product for the parts that are needed only at the
//! places of a selection, and one product for all other parts, each with its columns of `W` and
//! `b`. The columns of `W` form `O` runs. In each run, each of the `P` parts has `I` adjacent
//! columns, so column `(o·P + p)·I + i` belongs to part `p`.

use std::ops::Range;

use super::region::NarrowRegion;
use super::write::rename;
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::analysis::axis_factors::LayoutMap;
use crate::ir::axes::axis as counted;
use crate::ir::builder::Maker;
use crate::ir::regions::region_path;
use crate::ir::{NodeId, Reader, ValueId};
use crate::onnx::tensor::DataType;
use crate::ops::axes::{AxisRead, reads};
use crate::recipe::Recipe;
use crate::shape::facts::extent;

/// A part of the product that a reader takes.
#[derive(Clone)]
struct TakenPart {
    node: NodeId,
    output: ValueId,
    /// The places that it takes on the axis of the parts.
    places: Range<usize>,
    drops_axis: bool,
    is_narrow: bool,
}

/// A product with a constant weight, the operators after it, and the value of which readers take
/// parts.
struct Product {
    node: NodeId,
    /// The Add of a bias, and the input that is the bias.
    bias: Option<(NodeId, usize)>,
    /// A Reshape that gives the parts an axis of their own.
    reshape: Option<NodeId>,
    /// The Transposes after it, in order.
    transposes: Vec<NodeId>,
    whole: ValueId,
}

/// Splits the product at which a region ends.
pub(super) fn split_product(analysis: &Analysis, region: &NarrowRegion) -> Option<Replacement> {
    region.cuts.iter().find_map(|&(value, along)| {
        let whole = split_value(analysis, value).unwrap_or(value);
        let product = product(analysis, whole, along)?;
        let (axis, parts) = parts(analysis, region, whole)?;
        written(analysis, &product, axis, &parts)
    })
}

/// The input of the Split that outputs a value.
fn split_value(analysis: &Analysis, value: ValueId) -> Option<ValueId> {
    let (node, _) = analysis.graph.producer(value)?;
    analysis
        .graph
        .is(node, "Split")
        .then(|| analysis.graph.input(node, 0))
        .flatten()
}

/// The product before a value. No value in between may have another reader, and no operator in
/// between may stop a selection along the axis.
fn product(analysis: &Analysis, whole: ValueId, along: usize) -> Option<Product> {
    let graph = &analysis.graph;
    let mut found = Product {
        node: 0,
        bias: None,
        reshape: None,
        transposes: vec![],
        whole,
    };
    let (mut value, mut along) = (whole, along);
    loop {
        let (node, _) = graph.producer(value)?;
        let at = analysis.at(node);
        if value != whole && graph.only_reader(value).is_none() {
            return None;
        }
        let (next, slot) = match graph.op(node)? {
            "Transpose" if found.reshape.is_none() && found.bias.is_none() => {
                found.transposes.insert(0, node);
                (at.input(0).ok()?, 0)
            }
            "Reshape" if found.reshape.is_none() && found.bias.is_none() => {
                found.reshape = Some(node);
                (at.input(0).ok()?, 0)
            }
            "Add" if found.bias.is_none() => {
                let bias = at.constant_operand()?;
                found.bias = Some((node, bias));
                (at.input(1 - bias).ok()?, 1 - bias)
            }
            "MatMul" => {
                found.node = node;
                passed(analysis, node, 0, along)?;
                let weight = at.weight(1).ok()?;
                let is_own = at.rank(1) == Ok(2) && graph.only_reader(weight).is_some();
                return is_own.then_some(found);
            }
            _ => return None,
        };
        along = passed(analysis, node, slot, along)?;
        value = next;
    }
}

/// The axis of an input to which a selection along an axis of the output passes.
fn passed(analysis: &Analysis, node: NodeId, slot: usize, along: usize) -> Option<usize> {
    match reads(&analysis.at(node), 0, along).get(slot)? {
        &AxisRead::Same(axis) => Some(axis),
        _ => None,
    }
}

/// The parts that the readers of a value take, and their common axis.
fn parts(
    analysis: &Analysis,
    region: &NarrowRegion,
    whole: ValueId,
) -> Option<(usize, Vec<TakenPart>)> {
    let graph = &analysis.graph;
    let mut all: Option<(usize, Vec<TakenPart>)> = None;
    for reader in graph.readers(whole) {
        let &Reader::Node { node, input: 0 } = reader else {
            return None;
        };
        let at = analysis.at(node);
        let axis = parted_axis(analysis, node)?;
        for (slot, output) in graph.outputs(node).iter().enumerate() {
            let output = (*output)?;
            let is_gather = graph.is(node, "Gather");
            let places = match is_gather {
                true => gathered(analysis, node, axis)?,
                false => {
                    let AxisRead::Strided { start, step: 1, .. } =
                        *reads(&at, slot, axis).first()?
                    else {
                        return None;
                    };
                    start..start + at.output_extent(slot, axis).ok()?
                }
            };
            let is_cut = region.cuts.iter().any(|(cut, _)| *cut == output);
            let is_narrow =
                is_cut || region.nodes.contains(&node) || region.narrow.contains_key(&output);
            let part = TakenPart {
                node,
                output,
                places,
                drops_axis: is_gather,
                is_narrow,
            };
            let (other, list) = all.get_or_insert((axis, vec![]));
            if *other != axis {
                return None;
            }
            list.push(part);
        }
    }
    all.filter(|(_, parts)| {
        parts.iter().any(|part| part.is_narrow) && parts.iter().any(|part| !part.is_narrow)
    })
}

fn parted_axis(analysis: &Analysis, node: NodeId) -> Option<usize> {
    let at = analysis.at(node);
    let rank = at.rank(0).ok()?;
    match analysis.graph.op(node)? {
        "Gather" | "Split" => counted(at.attr("axis", 0).ok()?, rank).ok(),
        "Slice" => match at.list("axes").ok()??[..] {
            [axis] => counted(axis, rank).ok(),
            _ => None,
        },
        _ => None,
    }
}

fn gathered(analysis: &Analysis, node: NodeId, axis: usize) -> Option<Range<usize>> {
    let at = analysis.at(node);
    let [place] = at.ints(1).ok()??[..] else {
        return None;
    };
    let whole = at.extent(0, axis).ok()?;
    let place = counted(place, whole).ok()?;
    (at.rank(1) == Ok(0)).then_some(place..place + 1)
}

/// The layout of a product's columns in parts: the axis of the parts before the transposes, and
/// `O`, `P`, `I`.
fn layout(analysis: &Analysis, product: &Product, axis: usize) -> Option<(usize, [usize; 3])> {
    let graph = &analysis.graph;
    let mut axis = axis;
    for &node in product.transposes.iter().rev() {
        let at = analysis.at(node);
        axis = *at.permutation(at.rank(0).ok()?).ok()?.get(axis)?;
    }
    let made = graph.only_output(product.node)?;
    let shape = analysis.facts.shape(made)?;
    let columns = extent(shape.last()?)?;
    let Some(reshape) = product.reshape else {
        return (axis + 1 == shape.len()).then_some((axis, [1, columns, 1]));
    };
    let behind = analysis.facts.shape(graph.only_output(reshape)?)?;
    let mut trace = LayoutMap::new(&shape);
    trace.follow(graph.node(reshape), &behind)?;
    let (from, [outer, inner]) = trace.run(axis)?;
    let parts = extent(behind.get(axis)?)?;
    (from + 1 == shape.len() && outer * parts * inner == columns)
        .then_some((axis, [outer, parts, inner]))
}

/// The columns of some parts.
fn columns([outer, parts, inner]: [usize; 3], places: &[usize]) -> Vec<Option<usize>> {
    let mut columns = vec![];
    for run in 0..outer {
        for place in places {
            columns.extend((0..inner).map(|column| Some((run * parts + place) * inner + column)));
        }
    }
    columns
}

fn written(
    analysis: &Analysis,
    product: &Product,
    axis: usize,
    parts: &[TakenPart],
) -> Option<Replacement> {
    let graph = &analysis.graph;
    let (reshaped, layout) = layout(analysis, product, axis)?;
    let sizes = [true, false].map(|is_narrow| places(parts, is_narrow));
    // Each place belongs to only one product.
    if sizes[0].iter().any(|place| sizes[1].contains(place)) {
        return None;
    }
    let mut maker = Maker::new(graph, product.node);
    let mut made = vec![];
    for (places, is_narrow) in sizes.iter().zip([true, false]) {
        let name = product_of(analysis, product, reshaped, layout, places, &mut maker)?;
        for part in parts.iter().filter(|part| part.is_narrow == is_narrow) {
            let start = places
                .iter()
                .position(|&place| place == part.places.start)?;
            let run = start..start + part.places.len();
            if places.get(run.clone())? != part.places.clone().collect::<Vec<_>>() {
                return None;
            }
            let mut own = name.clone();
            if run.len() < places.len() {
                own = maker.slice(&own, &run, axis as i64);
            }
            own = match part.drops_axis {
                true => maker.squeeze(&own, axis as i64),
                false if own == name => maker.op("Identity", &[&own], vec![]),
                false => own,
            };
            made.push((own, graph.value_name(part.output).to_owned()));
        }
    }
    let (mut nodes, constants) = maker.done();
    for (name, output) in &made {
        nodes.iter_mut().for_each(|node| rename(node, name, output));
    }
    let mut replaced = vec![product.node];
    replaced.extend(product.bias.map(|(node, _)| node));
    replaced.extend(product.reshape);
    replaced.extend(&product.transposes);
    replaced.extend(parts.iter().map(|part| part.node));
    replaced.sort_unstable();
    replaced.dedup();
    let body = region_path(graph.node(product.node));
    let are_in_body = replaced
        .iter()
        .all(|&node| region_path(graph.node(node)) == body);
    (graph.producer(product.whole).is_some() && are_in_body).then_some(Replacement {
        nodes: replaced,
        made: nodes,
        constants,
    })
}

/// The places of the narrow or the other parts, in ascending order.
fn places(parts: &[TakenPart], is_narrow: bool) -> Vec<usize> {
    let mut places: Vec<usize> = parts
        .iter()
        .filter(|part| part.is_narrow == is_narrow)
        .flat_map(|part| part.places.clone())
        .collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// Writes the product of some parts, with the layout of the whole product.
fn product_of(
    analysis: &Analysis,
    product: &Product,
    axis: usize,
    layout: [usize; 3],
    places: &[usize],
    maker: &mut Maker,
) -> Option<String> {
    let graph = &analysis.graph;
    let at = analysis.at(product.node);
    let columns = columns(layout, places);
    let weight = at.weight(1).ok()?;
    let recipe = at.constant(1).ok()?.pick(1, columns.iter().copied())?;
    let data_type = analysis
        .facts
        .data_type(weight)
        .filter(|it| it.is_float())?;
    let weight = maker.weight(data_type, &recipe, graph.value_name(weight), vec![0]);
    let mut name = maker.op(
        "MatMul",
        &[graph.value_name(at.input(0).ok()?), &weight],
        vec![],
    );
    if let Some((node, slot)) = product.bias {
        let bias = bias(analysis, node, slot, &columns, layout, maker, data_type)?;
        name = maker.op("Add", &[&name, &bias], vec![]);
    }
    if let Some(node) = product.reshape {
        let at = analysis.at(node);
        let mut target = at.ints(1).ok()??;
        *target.get_mut(axis)? = places.len() as i64;
        let target = maker.ints(&target);
        let inputs = [name, target];
        name = maker.repeat(node, &inputs).first()?.clone();
    }
    for &node in &product.transposes {
        name = maker.repeat(node, &[name]).first()?.clone();
    }
    Some(name)
}

/// Writes these columns of a bias, which must have one element for each column.
fn bias(
    analysis: &Analysis,
    node: NodeId,
    slot: usize,
    columns: &[Option<usize>],
    layout: [usize; 3],
    maker: &mut Maker,
    data_type: DataType,
) -> Option<String> {
    let at = analysis.at(node);
    let recipe: Recipe = at.constant(slot).ok()?;
    let last = recipe.shape().len().checked_sub(1)?;
    let is_vector = recipe.shape()[last] == layout.iter().product::<usize>()
        && recipe.shape()[..last].iter().all(|&n| n == 1);
    let picked = recipe
        .pick(last, columns.iter().copied())
        .filter(|_| is_vector)?;
    Some(maker.floats(data_type, &picked))
}
