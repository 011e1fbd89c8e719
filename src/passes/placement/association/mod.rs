//! Multiplies few rows with the weight of a projection, instead of projecting all tokens.
//!
//! Before: queries `q·(x·W + b)ᵀ`, or a mean `p·(x·W + b)` of values, with x in `[B, N, C]`, W in
//! `[C, H·D]` and M rows of q and p for each of H heads. After: `(q·Wᵀ)·xᵀ + q·bᵀ`, and `(p·x)·W +
//! b`. If only a class token or the last token is needed, M is 1. Then each token costs `H·C`
//! multiplications, instead of `C·H·D` for the projection. Samples and heads may be one axis, as in
//! `[B·H, N, D]`, and the tokens may be the first axis of x.
//!
//! This is exact: products of matrices are associative, and each head has its own columns of W. The
//! bias of a mean passes if the weights of the mean add up to 1, such as those of a Softmax. All
//! heads share x, so the rows of all heads are rows of one matrix in the product with x.
//!
//! All readers of the projection must be products with few rows, since otherwise the projection
//! would stay.

mod projection;

use super::layer::ChannelOperator;
use super::{PlacementMove, WorkTerm, are_in_one_body, places};
use crate::affine::row_stochastic::add_up_to_one;
use crate::analysis::Analysis;
use crate::ir::NodeId;
use crate::ir::builder::Maker;
use crate::onnx::tensor::DataType;
use crate::recipe::Recipe;
use crate::shape::facts::{extent, same};
use projection::Projection;

/// The name of this rule in the plan and for `--skip`.
const RULE: &str = "association";

/// The ranks of the operands of a product: samples, heads, rows, columns, where samples and heads
/// may be one axis.
const RANKS: [usize; 2] = [3, 4];

/// The number of tokens that is assumed for an unknown extent when costs are compared.
const MANY: usize = 1 << 12;

/// The least number of multiplications to save for each sample, since the new operators take time.
const LEAST: usize = 1 << 18;

/// The use of a projection in an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProjectionRole {
    /// The projection has tokens as columns: `q·kᵀ`.
    Keys,
    /// The projection has tokens as rows: `p·v`.
    Values,
}

/// A product of few rows and a projection.
struct FewRows<'a> {
    analysis: &'a Analysis<'a>,
    node: NodeId,
    operator: &'a ChannelOperator,
    projection: Projection,
    role: ProjectionRole,
    heads: usize,
    /// Whether samples and heads are one axis of the operands.
    are_merged: bool,
    /// The number of rows of each head.
    rows: usize,
    /// The number of channels of each head.
    width: usize,
}

/// The move of the weight of a projection to few rows, if the node is a product of few rows and the
/// projection. `None` for another node, or if the move does not pay.
pub(super) fn find(analysis: &Analysis, node: NodeId) -> Option<PlacementMove> {
    let graph = &analysis.graph;
    if graph.domain_op(node) != ("", "MatMul")
        || !RANKS.contains(&analysis.facts.rank(graph.input(node, 1)?)?)
    {
        return None;
    }
    let operator = projection::operator_before(analysis, graph.input(node, 1)?)?;
    let products = [1, 0]
        .into_iter()
        .find_map(|tokens| few_rows(analysis, &operator, tokens))?;
    let nodes: Vec<NodeId> = products.iter().map(|product| product.node).collect();
    if !pays(&operator, &products, analysis)
        || !are_in_one_body(graph, &[&nodes[..], &[operator.node]].concat())
    {
        return None;
    }
    let own = products.iter().find(|product| product.node == node)?;
    own.placed()
}

/// The products that read a projection, if all of them have few rows. `tokens` is the axis of the
/// tokens in the value that is projected. `None` if another node reads the projection.
fn few_rows<'a>(
    analysis: &'a Analysis<'a>,
    operator: &'a ChannelOperator,
    tokens: usize,
) -> Option<Vec<FewRows<'a>>> {
    let operands = projection::operands(analysis, operator, tokens)?;
    let products = operands
        .into_iter()
        .map(|(node, projection)| FewRows::read(analysis, operator, node, projection));
    products.collect()
}

/// Whether the move pays. For a known number of tokens, it must halve the number of multiplications
/// and save at least [`LEAST`]. For an unknown number, it must do so for [`MANY`] tokens, and still
/// save some multiplications for two tokens.
fn pays(operator: &ChannelOperator, products: &[FewRows], analysis: &Analysis) -> bool {
    let along = products
        .first()
        .map_or(1, |product| product.source_tokens());
    let tokens = analysis.facts.extent(operator.value, along);
    let [few, many] = [2, MANY].map(|open| tokens.unwrap_or(open));
    let [before, after] = work(operator, products, many);
    let [least_before, least_after] = work(operator, products, few);
    least_after < least_before
        && after.saturating_mul(2) <= before
        && before.saturating_sub(after) >= LEAST
}

/// The number of multiplications for each sample before and after the move.
fn work(operator: &ChannelOperator, products: &[FewRows], tokens: usize) -> [usize; 2] {
    let mut before = operator.products.saturating_mul(tokens);
    let mut after = 0_usize;
    for product in products {
        let rows = product.heads.saturating_mul(product.rows);
        before = before.saturating_add(rows.saturating_mul(tokens).saturating_mul(product.width));
        let row = operator.channels[0].saturating_mul(tokens.saturating_add(product.width));
        after = after.saturating_add(rows.saturating_mul(row));
    }
    [before, after]
}

impl<'a> FewRows<'a> {
    /// Reads a product. `None` if an extent is unknown, if the operands differ in samples or heads,
    /// or if the bias cannot move after the product.
    fn read(
        analysis: &'a Analysis,
        operator: &'a ChannelOperator,
        node: NodeId,
        projection: Projection,
    ) -> Option<Self> {
        let at = analysis.at(node);
        let [left, right] = [at.shape(0).ok()?, at.shape(1).ok()?];
        let rank = right.len();
        let are_merged = rank == RANKS[0];
        let heads_axis = rank.checked_sub(RANKS[0])?;
        let heads = *projection.weight.shape().get(heads_axis)?;
        let mut batch = left.iter().zip(&right).take(heads_axis + 1);
        let has_heads = RANKS.contains(&rank)
            && left.len() == rank
            && batch.all(|(one, other)| same(one, other))
            && projection.samples.is_none_or(|samples| samples == 0)
            && (are_merged || projection.weight.shape()[0] == 1);
        if !has_heads {
            return None;
        }
        let role = match rank.checked_sub(projection.tokens)? {
            1 => ProjectionRole::Keys,
            2 => ProjectionRole::Values,
            _ => return None,
        };
        let passes = role == ProjectionRole::Keys
            || projection.bias.is_none()
            || add_up_to_one(&at, 0, rank - 1);
        let from_end = if role == ProjectionRole::Keys { 2 } else { 1 };
        let (rows, width) = (extent(&left[rank - 2])?, extent(&right[rank - from_end])?);
        passes.then_some(FewRows {
            analysis,
            node,
            operator,
            projection,
            role,
            heads,
            are_merged,
            rows,
            width,
        })
    }

    fn placed(&self) -> Option<PlacementMove> {
        let (analysis, operator) = (self.analysis, self.operator);
        let graph = &analysis.graph;
        let mut maker = Maker::new(graph, self.node);
        match self.role {
            ProjectionRole::Keys => self.write_keys(&mut maker)?,
            ProjectionRole::Values => self.write_values(&mut maker)?,
        }
        let inner = operator.channels[0];
        let rows = self.heads * self.rows;
        let tokens = places(analysis, operator.value, operator.axis)?;
        let samples = vec![tokens.get(self.source_samples())?.clone()];
        let before = [WorkTerm::new(
            (inner * self.heads + rows) * self.width,
            tokens.clone(),
        )];
        let after = [
            WorkTerm::new(rows * inner, tokens),
            WorkTerm::new(rows * inner * self.width, samples),
        ];
        Some(PlacementMove::new(
            analysis,
            (RULE, self.node),
            vec![self.node],
            maker,
            graph.only_output(self.node)?,
            [&before, &after],
        ))
    }

    /// Writes `(q·Wᵀ)·xᵀ + q·bᵀ`. `None` if a constant cannot be stored.
    fn write_keys(&self, maker: &mut Maker) -> Option<()> {
        let queries = self.by_head(self.name(0)?, self.width, maker);
        let weight = self.weight(maker)?;
        let wide = maker.op("MatMul", &[&queries, &weight], vec![]);
        let rows = maker.reshape(&wide, &[0, self.all_rows(), -1]);
        let columns = self.source([self.source_samples(), 2, self.source_tokens()], maker);
        let product = maker.op("MatMul", &[&rows, &columns], vec![]);
        let product = self.as_operands(&product, maker);
        if let Some(bias) = self.bias(maker)? {
            let shift = maker.op("MatMul", &[&queries, &bias], vec![]);
            let shift = self.merged(shift, 1, maker);
            maker.op("Add", &[&product, &shift], vec![]);
        }
        Some(())
    }

    /// Writes `(p·x)·W + b`. `None` if a constant cannot be stored.
    fn write_values(&self, maker: &mut Maker) -> Option<()> {
        let rows = self.name(0)?;
        let rows = match self.are_merged {
            true => maker.reshape(rows, &[-1, self.all_rows(), 0]),
            false => maker.reshape(rows, &[0, self.all_rows(), -1]),
        };
        let tokens = self.source([self.source_samples(), self.source_tokens(), 2], maker);
        let means = maker.op("MatMul", &[&rows, &tokens], vec![]);
        let means = self.divided(&means, maker);
        let weight = self.weight(maker)?;
        let mut product = maker.op("MatMul", &[&means, &weight], vec![]);
        if let Some(bias) = self.bias(maker)? {
            product = maker.op("Add", &[&product, &bias], vec![]);
        }
        self.merged(product, self.width, maker);
        Some(())
    }

    /// The number of rows of all heads.
    fn all_rows(&self) -> i64 {
        (self.heads * self.rows) as i64
    }

    /// Splits the rows of one matrix into the rows of each head.
    fn divided(&self, rows: &str, maker: &mut Maker) -> String {
        maker.reshape(rows, &[0, self.heads as i64, self.rows as i64, -1])
    }

    /// Writes an operand of the product with separate axes for samples and heads.
    fn by_head(&self, operand: &str, width: usize, maker: &mut Maker) -> String {
        let [heads, rows, width] = [self.heads, self.rows, width].map(|extent| extent as i64);
        match self.are_merged {
            true => maker.reshape(operand, &[-1, heads, rows, width]),
            false => operand.to_owned(),
        }
    }

    /// Writes a value of `width` columns with the axes of the operands. The value has separate axes
    /// for samples and heads.
    fn merged(&self, value: String, width: usize, maker: &mut Maker) -> String {
        match self.are_merged {
            true => maker.reshape(&value, &[-1, self.rows as i64, width as i64]),
            false => value,
        }
    }

    /// Writes the rows of one matrix for each sample with the axes of the operands.
    fn as_operands(&self, rows: &str, maker: &mut Maker) -> String {
        match self.are_merged {
            true => maker.reshape(rows, &[-1, self.rows as i64, 0]),
            false => self.divided(rows, maker),
        }
    }

    fn name(&self, slot: usize) -> Option<&'a str> {
        let graph = &self.analysis.graph;
        Some(graph.value_name(graph.input(self.node, slot)?))
    }

    /// The axis of the tokens in the value that is projected.
    fn source_tokens(&self) -> usize {
        self.projection.source_tokens
    }

    /// The axis of the samples in the value that is projected.
    fn source_samples(&self) -> usize {
        1 - self.source_tokens()
    }

    /// Writes the value that is projected, with its axes in this order.
    fn source(&self, order: [usize; 3], maker: &mut Maker) -> String {
        let name = self.analysis.graph.value_name(self.operator.value);
        if order.is_sorted() {
            return name.to_owned();
        }
        maker.transpose(name, &order.map(|axis| axis as i64))
    }

    /// Stores the weight, with a matrix for each head. `None` if it cannot be stored.
    fn weight(&self, maker: &mut Maker) -> Option<String> {
        let weight = self.analysis.graph.input(self.operator.node, 1)?;
        let matrices = self.by_heads(&self.projection.weight)?;
        let name = self.analysis.graph.value_name(weight);
        Some(maker.weight(self.data_type()?, &matrices, name, vec![1]))
    }

    /// Stores the bias of the projection. `Some(None)` if the projection has no bias, and `None` if
    /// the bias cannot be stored.
    fn bias(&self, maker: &mut Maker) -> Option<Option<String>> {
        let Some(bias) = &self.projection.bias else {
            return Some(None);
        };
        let bias = self.by_heads(bias)?;
        Some(Some(maker.floats(self.data_type()?, &bias)))
    }

    fn data_type(&self) -> Option<DataType> {
        let graph = &self.analysis.graph;
        self.analysis
            .facts
            .data_type(graph.input(self.operator.node, 1)?)
    }

    /// A constant in the layout of the operands with a matrix for each head: without the axis of
    /// samples, which has extent 1, unless the heads are on this axis.
    fn by_heads(&self, constant: &Recipe) -> Option<Recipe> {
        match self.are_merged {
            true => Some(constant.clone()),
            false => constant.reshape(constant.shape().get(1..)?),
        }
    }
}
