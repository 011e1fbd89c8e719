//! A layer before what cuts its tokens into windows, for tract, which puts the product there by itself and leaves the bias
//! behind: an Add over the windows, which goes into no product.
//!
//! Before: `Reshape, Transpose, Reshape, MatMul W, Add b`. After: `MatMul W, Add b, Reshape, Transpose, Reshape`, each
//! Reshape with as many channels as W makes. Exact: a layer sees each token alone, wherever it is.

use crate::affine::materialize::Edit;
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::passes::legalize::dense_layer::Layer;

/// How an operator moves tokens, with all channels of each.
enum Move {
    /// A Reshape to these extents.
    Arranged(Vec<i64>),
    /// A Transpose.
    Ordered(Vec<i64>),
}

/// All layers in front of the movements that they read the results of.
pub fn edits(analysis: &Analysis) -> Vec<Edit> {
    analysis
        .graph
        .order()
        .iter()
        .filter_map(|&node| edit(analysis, node))
        .collect()
}

/// A layer in front of the movement that it reads the result of.
fn edit(analysis: &Analysis, matmul: NodeId) -> Option<Edit> {
    let graph = &analysis.graph;
    let Layer {
        add,
        mut value,
        weight,
        bias,
        output,
        rows,
        columns,
    } = Layer::find(analysis, matmul)?;
    let (mut moves, mut nodes) = (vec![], vec![matmul, add]);
    while let Some((node, source, step)) = moved(analysis, value, rows) {
        nodes.push(node);
        moves.push(step);
        value = source;
    }
    moves.reverse();
    // Without both, tract adds the bias in the product already.
    let arranged = moves
        .iter()
        .position(|step| matches!(step, Move::Arranged(_)))?;
    if !moves[arranged..]
        .iter()
        .any(|step| matches!(step, Move::Ordered(_)))
    {
        return None;
    }
    let name = |value| graph.value_name(value);
    let mut maker = Maker::new(graph, matmul);
    let product = maker.op("MatMul", &[name(value), name(weight)], vec![]);
    let mut last = maker.op("Add", &[&product, name(bias)], vec![]);
    for step in moves {
        last = match step {
            Move::Arranged(mut extents) => {
                extents.pop();
                extents.push(columns as i64);
                maker.reshape(&last, &extents)
            }
            Move::Ordered(perm) => maker.transpose(&last, &perm),
        };
    }
    let (made, constants) = maker.finish(name(output));
    let replacement = Replacement {
        nodes,
        made,
        constants,
    };
    Some(Edit::replacing(graph, matmul, replacement))
}

/// The movement that makes a value of tokens with this many channels, its input, and its form; the
/// value has one reader.
fn moved(analysis: &Analysis, value: ValueId, channels: usize) -> Option<(NodeId, ValueId, Move)> {
    let graph = &analysis.graph;
    graph.only_reader(value)?;
    let (node, _) = graph.producer(value)?;
    let at = analysis.at(node);
    let (source, rank) = (at.input(0).ok()?, at.rank(0).ok()?);
    let last = rank.checked_sub(1)?;
    let step = match graph.op(node)? {
        "Reshape" => {
            at.only_attributes(&["allowzero"]).ok()?;
            let extents = at.ints(1).ok()??;
            // A 0 copies the input's extent, which behind the layer would be another number of
            // channels, or no axis.
            let is_none = at.flag("allowzero", false).ok()?;
            let is_kept = |(axis, &extent): (usize, &i64)| extent != 0 || axis < last && !is_none;
            let before_last = extents.split_last()?.1;
            let are_kept = before_last.iter().enumerate().all(is_kept);
            let has_channels = at.extent(0, last) == Ok(channels)
                && at.output_extent(0, before_last.len()) == Ok(channels);
            (are_kept && has_channels).then_some(Move::Arranged(extents))?
        }
        "Transpose" => {
            at.only_attributes(&["perm"]).ok()?;
            let perm = at.permutation(rank).ok()?;
            let perm: Vec<i64> = perm.into_iter().map(|axis| axis as i64).collect();
            (perm.last() == Some(&(last as i64))).then_some(Move::Ordered(perm))?
        }
        _ => return None,
    };
    Some((node, source, step))
}
