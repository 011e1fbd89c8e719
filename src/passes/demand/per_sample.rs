//! Selections of one place of each sample, by an index that the model computes.
//!
//! CLIP reads the token at the end of each text. Exporters write this as a GatherND whose indices
//! have a column of sample numbers and a column of token indices. Or they flatten samples and
//! tokens to rows, and write a Gather at `index + sample · tokens`. Row `sample` of the result is
//! the place `index[sample]` of that sample. When the selection moves up, the same places are
//! gathered from each operand that varies along the samples.

use super::places::{PlaceSet, Selection};
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::axes::axis as counted;
use crate::ir::builder::{Maker, int};
use crate::ir::{NodeId, ValueId};
use crate::shape::facts::{extent, same};

/// The axis of the samples.
pub(super) const SAMPLES: usize = 0;

/// The axis of the places in the selected value.
const PLACES: usize = 1;

/// The first operator set in which a GatherND has `batch_dims`.
const HAS_SAMPLES: i64 = 12;

/// The selection whose first node is `node` and that takes one place of each sample, with the axis
/// of the places. `None` if no such selection begins at `node`, or if the operator set has no
/// GatherND with `batch_dims`.
pub(super) fn selection(analysis: &Analysis, node: NodeId) -> Option<(usize, Selection)> {
    let graph = &analysis.graph;
    let at = analysis.at(node);
    let (index, last) = match graph.domain_op(node) {
        ("", "GatherND") => (indices_by_column(&at)?, node),
        ("", "Flatten" | "Reshape") => {
            let (gather, _) = graph.only_reader(graph.only_output(node)?)?;
            (index_of_rows(analysis, node, gather)?, gather)
        }
        _ => return None,
    };
    let nodes = if last == node {
        vec![node]
    } else {
        vec![last, node]
    };
    let selection = Selection {
        nodes,
        output: graph.only_output(last)?,
        places: PlaceSet::OfSample(index),
        drops_axis: true,
    };
    (at.opset() >= HAS_SAMPLES).then_some((PLACES, selection))
}

/// The column of place indices of a GatherND. `None` unless each row of its indices is a sample
/// number and a place index.
fn indices_by_column(at: &At) -> Option<ValueId> {
    at.only_attributes(&["batch_dims"]).ok()?;
    let indices = at.input(1).ok()?;
    let is_list = at.rank(1) == Ok(2) && at.attr("batch_dims", 0) == Ok(0);
    let (concat, _) = at.graph.producer(indices).filter(|_| is_list)?;
    if at.graph.domain_op(concat) != ("", "Concat") {
        return None;
    }
    let columns = At {
        node: concat,
        ..*at
    };
    let along = counted(columns.attr("axis", 0).ok()?, 2).ok()?;
    let &[Some(samples), Some(index)] = at.graph.inputs(concat) else {
        return None;
    };
    let are_columns = along == 1 && (0..2).all(|slot| columns.extent(slot, 1) == Ok(1));
    (are_columns && counts_samples(at, vector_of(at, samples)?)).then_some(index)
}

/// The vector from which an Unsqueeze or a Reshape makes the value `column`. `None` if another
/// operator produces the value, or if the input is not a vector.
fn vector_of(at: &At, column: ValueId) -> Option<ValueId> {
    let (node, _) = at.graph.producer(column)?;
    let vector = at.graph.input(node, 0)?;
    let is_unsqueeze = matches!(at.graph.domain_op(node), ("", "Unsqueeze" | "Reshape"));
    (is_unsqueeze && at.facts.rank(vector) == Some(1)).then_some(vector)
}

/// Whether a vector is `0, 1, …, n − 1`, where n is the number of samples in the first input of the
/// node `at`.
fn counts_samples(at: &At, vector: ValueId) -> bool {
    let Some((node, _)) = at.graph.producer(vector) else {
        return false;
    };
    let range = At { node, ..*at };
    let is_range = at.graph.domain_op(node) == ("", "Range")
        && range.ints(0) == Ok(Some(vec![0]))
        && range.ints(2) == Ok(Some(vec![1]));
    let [count, samples] = [range.output_shape(0), at.shape(0)];
    is_range
        && count.is_ok_and(|count| samples.is_ok_and(|samples| same(&count[0], &samples[SAMPLES])))
}

/// The index of the place that a Gather reads in each sample. `None` unless `flat` flattens samples
/// and tokens to rows, and the Gather reads the rows `index + sample · tokens`.
fn index_of_rows(analysis: &Analysis, flat: NodeId, gather: NodeId) -> Option<ValueId> {
    let (graph, at) = (&analysis.graph, analysis.at(flat));
    let [value, rows] = [at.shape(0).ok()?, at.output_shape(0).ok()?];
    let tokens = extent(value.get(PLACES)?)?;
    let is_flat = rows.len() + 1 == value.len()
        && rows
            .iter()
            .skip(1)
            .zip(value.iter().skip(2))
            .all(|(one, other)| same(one, other));
    let reads = analysis.at(gather);
    let is_gather = graph.domain_op(gather) == ("", "Gather")
        && reads.attr("axis", 0) == Ok(0)
        && reads.rank(1) == Ok(1);
    let (sum, _) = graph.producer(reads.input(1).ok()?)?;
    if !is_flat || !is_gather || graph.domain_op(sum) != ("", "Add") {
        return None;
    }
    let &[Some(one), Some(other)] = graph.inputs(sum) else {
        return None;
    };
    let pairs = [(one, other), (other, one)];
    let found = pairs.into_iter().find(|&(index, first)| {
        is_place(analysis, index, tokens) && is_first_row(&at, first, tokens)
    });
    found.map(|(index, _)| index)
}

/// Whether a vector is the ArgMax over an axis of extent `places`, so that each of its elements is
/// the index of a place.
fn is_place(analysis: &Analysis, vector: ValueId, places: usize) -> bool {
    let Some((node, _)) = analysis.graph.producer(vector) else {
        return false;
    };
    let at = analysis.at(node);
    let Ok(rank) = at.rank(0) else { return false };
    let along = at.attr("axis", 0).and_then(|along| counted(along, rank));
    analysis.graph.domain_op(node) == ("", "ArgMax")
        && analysis.facts.rank(vector) == Some(1)
        && along.is_ok_and(|along| at.extent(0, along) == Ok(places))
}

/// Whether a vector lists the index of the first row of each sample: `0, tokens, 2 · tokens, …`.
fn is_first_row(at: &At, vector: ValueId, tokens: usize) -> bool {
    let Some((node, _)) = at.graph.producer(vector) else {
        return false;
    };
    let product = At { node, ..*at };
    let Some(slot) = product.constant_operand() else {
        return false;
    };
    let counted = product.input(1 - slot);
    at.graph.domain_op(node) == ("", "Mul")
        && product.ints(slot) == Ok(Some(vec![tokens as i64]))
        && counted.is_ok_and(|counted| counts_samples(at, counted))
}

/// Writes the selection of one place of each sample from a value. `index` is a column with the
/// index of the place in each sample. Returns the name of the result, in which the axis of places
/// has extent 1.
pub(super) fn gathered(
    maker: &mut Maker,
    value: &str,
    (axis, rank): (usize, usize),
    index: &str,
) -> String {
    let mut name = value.to_owned();
    if axis != PLACES {
        let others = (1..rank).filter(|&other| other != axis);
        let order: Vec<i64> = [SAMPLES, axis]
            .into_iter()
            .chain(others)
            .map(|axis| axis as i64)
            .collect();
        name = maker.transpose(&name, &order);
    }
    let places = maker.op("GatherND", &[&name, index], vec![int("batch_dims", 1)]);
    maker.unsqueeze(&places, &[axis as i64])
}

/// Like [`gathered`], but from a value that all samples share: its axis of samples has extent 1.
/// Returns the name of the result.
pub(super) fn spread(
    maker: &mut Maker,
    value: &str,
    axis: usize,
    rank: usize,
    index: &str,
) -> String {
    let vector = maker.squeeze(index, 1);
    let places = maker.op("Gather", &[value, &vector], vec![int("axis", axis as i64)]);
    let mut order: Vec<i64> = (0..rank as i64).collect();
    order.swap(SAMPLES, axis);
    maker.transpose(&places, &order)
}
