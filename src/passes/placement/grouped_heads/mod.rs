//! Removes the repetition of matrices from the second operand of a product.
//!
//! Before: `MatMul(q, repeat(k))`, with queries `[B, K·G, T, D]` in heads, and keys `[B, K, D, S]`
//! that are repeated for the G heads of each group. After: the queries of a group are rows of one
//! matrix, `[B, K, G·T, D]`, and no key is repeated. The result `[B, K, G·T, S]` has the elements
//! of `[B, K·G, T, S]` in the same order.
//!
//! This is exact: matrix h of a repeated stack is matrix `h div G` of the source, and the rows of a
//! product do not depend on each other. A [`RepeatMap`] follows all operators that move and repeat
//! keys. If all matrices are repeated in turn (`h mod K`), or if another axis is between heads and
//! rows, the repetition becomes an axis of its own, over which keys broadcast.
//!
//! A scale of keys is applied before the repetition, and a scale of the product before the last
//! Reshape, since engines fuse this scale with the product.
//!
//! [`RepeatMap`]: crate::analysis::repeats::RepeatMap

mod operand;
mod rearrange;

use super::layer::again;
use super::{PlacementMove, WorkTerm, are_in_one_body};
use crate::affine::plan::Placed;
use crate::analysis::Analysis;
use crate::analysis::axis_factors::{Axes, AxisFactor, AxisFactors};
use crate::ir::builder::{Maker, int};
use crate::ir::{NodeId, ValueId};
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::{Shape, same};
use operand::{Link, RepeatedOperand};
use rearrange::rearranged;

/// The name of this rule in the plan and for `--skip`.
const RULE: &str = "heads";

/// The number of axes of a matrix.
const MATRIX: usize = 2;

/// A product whose second operand repeats matrices.
struct GroupedProduct<'a> {
    analysis: &'a Analysis<'a>,
    node: NodeId,
    operand: RepeatedOperand,
    stack: RepeatedAxis,
    /// The nodes that the new product replaces. The last one is the product itself.
    nodes: Vec<NodeId>,
}

/// An axis of a stack along which matrices are repeated.
struct RepeatedAxis {
    /// The index of the axis in the operand.
    axis: usize,
    /// The factors of the axis in three parts: the factors before the repetition, the factors of
    /// the repetition, and the factors after it.
    parts: [Vec<AxisFactor>; 3],
}

/// The arrangement of the matrices of a group in the product without the repetition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GroupForm {
    /// The rows of all matrices of a group are rows of one matrix.
    Rows,
    /// The matrices of a group lie along an axis over which the second operand broadcasts.
    Axis,
}

/// The move that writes a product without the repetition of matrices in its second operand. `None`
/// if the operand repeats none, or if the repetition cannot be removed.
pub(super) fn find(analysis: &Analysis, node: NodeId) -> Option<PlacementMove> {
    GroupedProduct::read(analysis, node)?.ok()?.moved()
}

/// The line in the plan for a product whose second operand repeats an axis, if the product cannot
/// be written without the repetition. `None` for other products.
pub(super) fn refused(analysis: &Analysis, node: NodeId) -> Option<Placed> {
    let why = match GroupedProduct::read(analysis, node)? {
        Ok(product) if product.moved().is_some() => return None,
        Ok(_) => Reason::UnknownShape,
        Err(why) => why,
    };
    let (graph, facts) = (&analysis.graph, &analysis.facts);
    let repeated = graph.input(node, 1)?;
    let source = RepeatedOperand::read(analysis, repeated)?.source;
    let [before, after] = [repeated, source].map(|value| facts.shape(value));
    Some(Placed {
        rule: RULE,
        at: graph.name(node).to_owned(),
        before: super::formula(&[WorkTerm::new(1, before?)]),
        after: super::formula(&[WorkTerm::new(1, after?)]),
        why: Some(Refusal::new(why, graph.name(node))),
    })
}

impl<'a> GroupedProduct<'a> {
    /// Reads a product. `None` if its second operand repeats nothing, or an unknown number of
    /// times. An error is the reason why the repetition cannot be removed.
    fn read(analysis: &'a Analysis<'a>, node: NodeId) -> Option<Result<Self, Reason>> {
        let (graph, at) = (&analysis.graph, analysis.at(node));
        let output = graph.only_output(node)?;
        let is_product = graph.domain_op(node) == ("", "MatMul") && at.only_attributes(&[]).is_ok();
        if !is_product || analysis.constants.is_constant(output) {
            return None;
        }
        let operand = RepeatedOperand::read(analysis, at.input(1).ok()?)?;
        operand.repeats_known_times().then_some(())?;
        Some(Self::with(analysis, node, operand))
    }

    /// Reads the product whose second operand is `operand`.
    ///
    /// # Errors
    /// If the first operand does not have one matrix for each copy in the second operand, if the
    /// copies have other readers, or if the nodes are in several bodies.
    fn with(
        analysis: &'a Analysis<'a>,
        node: NodeId,
        operand: RepeatedOperand,
    ) -> Result<Self, Reason> {
        let stack = RepeatedAxis::read(&operand)?;
        let at = analysis.at(node);
        let (rows, repeated) = (at.shape(0)?, at.shape(1)?);
        if rows.len() != repeated.len() || !same(&rows[stack.axis], &repeated[stack.axis]) {
            return Err(Reason::UnknownShape);
        }
        let mut nodes = operand.nodes(&analysis.graph, node)?;
        nodes.push(node);
        if !are_in_one_body(&analysis.graph, &nodes) {
            return Err(Reason::CapturedBySubgraph);
        }
        Ok(GroupedProduct {
            analysis,
            node,
            operand,
            stack,
            nodes,
        })
    }

    /// Writes the product without the repetition. `None` if a Reshape would have too many unknown
    /// extents.
    fn moved(&self) -> Option<PlacementMove> {
        let (graph, facts) = (&self.analysis.graph, &self.analysis.facts);
        let mut maker = Maker::new(graph, self.node);
        let scales = self.scales();
        self.write(&scales, &mut maker)?;
        let repeated = WorkTerm::new(1, facts.shape(graph.input(self.node, 1)?)?);
        let single = WorkTerm::new(1, facts.shape(self.operand.source)?);
        let behind = scales.iter().map(|link| link.node);
        let nodes: Vec<NodeId> = self.nodes.iter().copied().chain(behind).collect();
        let output = graph.only_output(*nodes.last()?)?;
        Some(PlacementMove::new(
            self.analysis,
            (RULE, self.node),
            nodes,
            maker,
            output,
            [&[repeated], &[single]],
        ))
    }

    /// The chain of element-wise operators after the product, in which each has only one operand
    /// that is not a constant scalar.
    fn scales(&self) -> Vec<Link> {
        let graph = &self.analysis.graph;
        let mut scales: Vec<Link> = vec![];
        let mut value = graph.only_output(self.node);
        while let Some(made) = value.filter(|&made| !graph.is_output(made)) {
            let reader = graph
                .only_reader(made)
                .map(|(reader, _)| self.analysis.at(reader));
            let link = reader
                .and_then(|at| Link::read(&at))
                .filter(|link| link.is_elementwise);
            let Some(link) = link.filter(|link| are_in_one_body(graph, &[self.node, link.node]))
            else {
                break;
            };
            value = graph.only_output(link.node);
            scales.push(link);
        }
        scales
    }

    /// Writes the product, and the Reshapes around it. Returns the name of the result. `None` if a
    /// Reshape would have too many unknown extents.
    fn write(&self, scales: &[Link], maker: &mut Maker) -> Option<String> {
        let graph = &self.analysis.graph;
        let at = self.analysis.at(self.node);
        let mut factors = self.operand.map.factors.clone();
        let rows = self.stack.factors(&mut factors, &at.shape(0).ok()?);
        let result = self.stack.factors(&mut factors, &at.output_shape(0).ok()?);
        let form = self.stack.form(rows.len());
        let [grouped_rows, grouped_result] =
            [&rows, &result].map(|axes| self.stack.grouped(axes, form));
        let queries = graph.value_name(at.input(0).ok()?);
        let queries = rearranged(&factors, queries, [&rows, &grouped_rows], maker)
            .or_else(|| self.apart_by_shape(&factors, queries, form, maker))?;
        let keys = self.single_operand(&factors, form, maker)?;
        let mut product = maker.op("MatMul", &[&queries, &keys], vec![]);
        for link in scales {
            product = again(self.analysis, (link.node, link.slot), &product, maker);
        }
        rearranged(&factors, &product, [&grouped_result, &result], maker)
            .or_else(|| self.in_shape_of_rows(&product, grouped_result.len(), maker))
    }

    /// Writes the second operand without its repetition. `None` if a Reshape would have too many
    /// unknown extents.
    fn single_operand(
        &self,
        factors: &AxisFactors,
        form: GroupForm,
        maker: &mut Maker,
    ) -> Option<String> {
        let map = &self.operand.map;
        let axes = self.stack.single(&map.value());
        let source = self.analysis.graph.value_name(self.operand.source);
        let mut keys = rearranged(factors, source, [&map.source(), &axes], maker)?;
        if form == GroupForm::Axis {
            keys = self.stack.broadcasting(factors, &keys, &axes, maker)?;
        }
        for link in self.operand.links.iter().filter(|link| link.is_elementwise) {
            keys = again(self.analysis, (link.node, link.slot), &keys, maker);
        }
        Some(keys)
    }

    /// Writes the first operand with the repetition as an axis of its own, by a shape that the
    /// model computes. This is needed if several unknown extents move to other axes. `None` for
    /// [`GroupForm::Rows`].
    fn apart_by_shape(
        &self,
        factors: &AxisFactors,
        queries: &str,
        form: GroupForm,
        maker: &mut Maker,
    ) -> Option<String> {
        let rank = self.analysis.at(self.node).rank(0).ok()?;
        let mut extents = vec![];
        for part in self.stack.parts.iter().filter(|part| !part.is_empty()) {
            extents.push(i64::try_from(factors.count(part)?).ok()?);
        }
        if form == GroupForm::Rows {
            return None;
        }
        let axis = self.stack.axis;
        let shape = maker.op("Shape", &[queries], vec![]);
        let mut parts = vec![maker.ints(&extents)];
        parts.push(maker.slice(&shape, &(axis + 1..rank), 0));
        if axis > 0 {
            parts.insert(0, maker.slice(&shape, &(0..axis), 0));
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let shape = maker.op("Concat", &parts, vec![int("axis", 0)]);
        Some(maker.op("Reshape", &[queries, &shape], vec![]))
    }

    /// Reshapes a product with `axes` axes to the shape of its first operand. The last extent is
    /// the number of columns of the product. `None` if another extent of the result differs from
    /// that operand.
    fn in_shape_of_rows(&self, product: &str, axes: usize, maker: &mut Maker) -> Option<String> {
        let at = self.analysis.at(self.node);
        let (rows, result) = (at.shape(0).ok()?, at.output_shape(0).ok()?);
        let leading = rows.len() - 1;
        let are_same = (0..leading).all(|axis| same(&rows[axis], &result[axis]));
        let rows: ValueId = at.input(0).ok().filter(|_| are_same)?;
        let rows = maker.op("Shape", &[self.analysis.graph.value_name(rows)], vec![]);
        let rows = maker.slice(&rows, &(0..leading), 0);
        let columns = maker.op("Shape", &[product], vec![]);
        let columns = maker.slice(&columns, &(axes - 1..axes), 0);
        let shape = maker.op("Concat", &[&rows, &columns], vec![int("axis", 0)]);
        Some(maker.op("Reshape", &[product, &shape], vec![]))
    }
}

impl RepeatedAxis {
    /// Reads the axis of the stack that an operand repeats.
    ///
    /// # Errors
    /// [`Reason::RepeatedAxis`] if the operand repeats rows, columns, or several axes.
    fn read(operand: &RepeatedOperand) -> Result<Self, Reason> {
        let map = &operand.map;
        let axes = map.value();
        let repeats = |axis: &&Vec<AxisFactor>| axis.iter().any(|&factor| map.is_repeat(factor));
        let axis = axes
            .iter()
            .position(|axis| repeats(&axis))
            .ok_or(Reason::UnknownShape)?;
        let is_single = axes.iter().filter(repeats).count() == 1;
        if !is_single || axis + MATRIX >= axes.len() {
            return Err(Reason::RepeatedAxis);
        }
        let held = &axes[axis];
        let start = held
            .iter()
            .take_while(|&&factor| !map.is_repeat(factor))
            .count();
        let repeat = held[start..]
            .iter()
            .take_while(|&&factor| map.is_repeat(factor))
            .count();
        let (before, rest) = held.split_at(start);
        let (repeat, behind) = rest.split_at(repeat);
        if behind.iter().any(|&factor| map.is_repeat(factor)) {
            return Err(Reason::RepeatedAxis);
        }
        Ok(RepeatedAxis {
            axis,
            parts: [before, repeat, behind].map(<[AxisFactor]>::to_vec),
        })
    }

    /// The axis factors of the first operand or of the result. Like the repeated operand, both have
    /// one matrix for each head. `shape` is the shape of the value in question.
    fn factors(&self, factors: &mut AxisFactors, shape: &Shape) -> Axes {
        let mut axes: Axes = shape.iter().map(|dim| factors.own(dim)).collect();
        axes[self.axis] = self.parts.concat();
        axes
    }

    /// The form of the new product for operands of rank `rank`. The matrices of a group become rows
    /// of one matrix if they follow one another, and if no axis is between the heads and the rows.
    fn form(&self, rank: usize) -> GroupForm {
        let [_, _, behind] = &self.parts;
        if self.axis + MATRIX + 1 == rank && behind.is_empty() {
            GroupForm::Rows
        } else {
            GroupForm::Axis
        }
    }

    /// The axes of the first operand, or of the result, in the product without the repetition.
    fn grouped(&self, axes: &Axes, form: GroupForm) -> Axes {
        let [before, repeat, behind] = self.parts.clone();
        let mut axes = axes.clone();
        match form {
            GroupForm::Rows => {
                axes[self.axis] = before;
                axes[self.axis + 1].splice(0..0, repeat);
            }
            GroupForm::Axis => {
                let parts = [before, repeat, behind]
                    .into_iter()
                    .filter(|part| !part.is_empty());
                axes.splice(self.axis..=self.axis, parts);
            }
        }
        axes
    }

    /// The axes of the second operand without the repetition.
    fn single(&self, axes: &Axes) -> Axes {
        let [before, _, behind] = &self.parts;
        let mut axes = axes.clone();
        axes[self.axis] = [&before[..], behind].concat();
        axes
    }

    /// Writes the second operand with an additional axis of extent 1 in place of the repetition.
    /// `None` if a Reshape would have too many unknown extents.
    fn broadcasting(
        &self,
        factors: &AxisFactors,
        keys: &str,
        axes: &Axes,
        maker: &mut Maker,
    ) -> Option<String> {
        let [before, _, behind] = &self.parts;
        if before.is_empty() || behind.is_empty() {
            let axis = self.axis + usize::from(!before.is_empty());
            return Some(maker.unsqueeze(keys, &[i64::try_from(axis).ok()?]));
        }
        let mut apart = axes.clone();
        let parts = [before.clone(), vec![], behind.clone()];
        apart.splice(self.axis..=self.axis, parts);
        rearranged(factors, keys, [axes, &apart], maker)
    }
}
