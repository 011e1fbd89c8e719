//! Moves a layer before the movements that cut its tokens into windows, for tract. tract itself
//! moves only the product. tract leaves the bias as an Add over the windows, and cannot fuse that
//! Add into a product.
//!
//! Before: `Reshape, Transpose, Reshape, MatMul W, Add b`. After: `MatMul W, Add b, Reshape,
//! Transpose, Reshape`, each Reshape with as many channels as W outputs. This is exact, because a
//! layer computes each token separately.

use crate::affine::materialize::Edit;
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::passes::legalize::dense_layer::Layer;

/// A movement of tokens, with all channels of each token.
enum Move {
    /// A Reshape to these extents.
    Arranged(Vec<i64>),
    /// A Transpose with this permutation.
    Ordered(Vec<i64>),
}

/// The edits that move layers before the movements whose results they read.
pub(super) fn edits(analysis: &Analysis) -> Vec<Edit> {
    analysis
        .graph
        .order()
        .iter()
        .filter_map(|&node| edit(analysis, node))
        .collect()
}

/// The edit that moves a layer before the movements that produce its input. `None` if this does not
/// help tract.
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
    // If no Transpose follows a Reshape, tract fuses the bias into the product, so the layer need
    // not move.
    let arranged = moves
        .iter()
        .position(|step| matches!(step, Move::Arranged(_)))?;
    if !moves[arranged..]
        .iter()
        .any(|step| matches!(step, Move::Ordered(_)))
    {
        return None;
    }
    let mut maker = Maker::new(graph, matmul);
    let [value, weight, bias] = [value, weight, bias].map(|operand| graph.value_name(operand));
    let product = maker.op("MatMul", &[value, weight], vec![]);
    let mut last = maker.op("Add", &[&product, bias], vec![]);
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
    let (made, constants) = maker.finish(graph.value_name(output));
    let replacement = Replacement {
        nodes,
        made,
        constants,
    };
    Some(Edit::replacing(graph, matmul, replacement))
}

/// The node that produces a value by a movement of tokens with `channels` channels, the value that
/// it moves, and the movement. `None` if the value has several readers, or another producer.
fn moved(analysis: &Analysis, value: ValueId, channels: usize) -> Option<(NodeId, ValueId, Move)> {
    let graph = &analysis.graph;
    graph.only_reader(value)?;
    let (node, _) = graph.producer(value)?;
    let at = analysis.at(node);
    let (source, rank) = (at.input(0).ok()?, at.rank(0).ok()?);
    let last = rank.checked_sub(1)?;
    let step = match graph.op(node)? {
        "Reshape" => Move::Arranged(token_extents(&at, last, channels)?),
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

/// The target extents of a Reshape. `None` unless it keeps the channels as the last axis, also with
/// another number of channels.
fn token_extents(at: &At, last: usize, channels: usize) -> Option<Vec<i64>> {
    at.only_attributes(&["allowzero"]).ok()?;
    let extents = at.ints(1).ok()??;
    let before_last = extents.split_last()?.1;
    // An extent of 0 copies the extent of the input at the same index. At the index of the
    // channels, it would copy the number of channels, which the layer changes. After this index,
    // the input has no axis to copy.
    let allows_zero = at.flag("allowzero", false).ok()?;
    let mut axes = before_last.iter().enumerate();
    let keeps_meaning = axes.all(|(axis, &extent)| extent != 0 || axis < last && !allows_zero);
    let has_channels = at.extent(0, last) == Ok(channels)
        && at.output_extent(0, before_last.len()) == Ok(channels);
    (keeps_meaning && has_channels).then_some(extents)
}
