//! Aligns the nodes of two models by the values that they compute, whatever their names.
//!
//! `docs/judge.md` defines the alignment. Two values are equal if their digests at one point of the
//! proof are equal. The nodes without a counterpart form blocks between equal values. A block holds
//! nodes of the first model and the nodes of the second one that replace them.

mod alignment;
mod around_cast;
mod behind;
mod blocks;
mod part;
mod parted;
mod reduce;
mod side;
mod sole_difference;

use serde::Serialize;

use crate::error::Result;
use crate::judge::{Judgement, judge_with_values};
use crate::onnx::Model;
use crate::prove::ProveOptions;
use alignment::Alignment;
use behind::behind_differences;
use blocks::blocks;
use side::ComparedModel;

use reduce::is_open;
pub(crate) use reduce::{DifferingParts, reduce};

/// The difference between two models.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ModelDifference {
    /// The verdict on both models.
    pub judgement: Judgement,
    /// The numbers of nodes of the first and the second model. Constants are not counted, because
    /// they count as tensors.
    pub nodes: [NodeCounts; 2],
    /// The nodes of the first model whose value the second model computes too, each with a node of
    /// the second model that computes it. The values at which the models begin to differ count as
    /// equal.
    pub aligned: Vec<NodePair>,
    /// The groups of nodes in which the models differ, in the order of execution of the first
    /// model.
    pub blocks: Vec<DiffBlock>,
}

/// The numbers of nodes of one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct NodeCounts {
    /// The number of all nodes.
    pub all: usize,
    /// The number of nodes whose value the other model computes or stores too.
    pub same: usize,
    /// The number of nodes whose value the other model lacks.
    pub only: usize,
    /// The number of nodes on which no output depends.
    pub unread: usize,
}

/// Two nodes that compute the same value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct NodePair {
    /// The name of the node of the first model.
    pub first: String,
    /// The name of the node of the second model.
    pub second: String,
    /// Whether both models have a node with this operator, these operands and results.
    pub kept: bool,
}

/// Nodes of the first model, and the nodes of the second model that replace them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DiffBlock {
    /// The verdict on the values that the block computes.
    pub verdict: BlockVerdict,
    /// The nodes of the first model.
    pub first: Vec<DiffNode>,
    /// The nodes of the second model.
    pub second: Vec<DiffNode>,
    /// The number of results of these nodes that the other model stores as tensors.
    pub stored: usize,
}

/// A node of a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DiffNode {
    /// The node's name, or the name of its first output if it has none.
    pub name: String,
    /// The node's operator.
    pub operator: String,
}

/// The verdict on a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum BlockVerdict {
    /// Both models compute the same values in this block.
    Same,
    /// Both models compute the same values in this block, if formulas replace rounded tensors.
    Rounded,
    /// Both models compute the same values in this block, if casts to narrower types do not round.
    Casts,
    /// A run shows a difference after this block.
    Different,
    /// The values after this block differ at the point of the proof, but no run shows a difference.
    Undecided,
}

impl BlockVerdict {
    /// The verdict in one word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Rounded => "rounded",
            Self::Casts => "casts",
            Self::Different => "different",
            Self::Undecided => "undecided",
        }
    }
}

/// Compares two models value by value.
///
/// # Errors
/// If one of the graphs is invalid.
pub(crate) fn diff(
    first: &Model,
    second: &Model,
    options: &ProveOptions,
) -> Result<ModelDifference> {
    let (judgement, mut values) = judge_with_values(first, second, options);
    let mut assumed = vec![];
    if is_open(&judgement) {
        let behind = behind_differences(first, second, options)?;
        if !behind.assumed.is_empty() {
            values = behind.values;
            assumed = behind.assumed;
        }
    }
    let [of_first, of_second] = &values.0;
    let sides = [
        ComparedModel::new(first, of_first)?,
        ComparedModel::new(second, of_second)?,
    ];
    let mut alignment = Alignment::new(&sides);
    for [name, other] in &assumed {
        alignment.assume(name, other);
    }
    Ok(ModelDifference {
        nodes: [0, 1].map(|side| alignment.counts(side)),
        aligned: alignment.pairs(),
        blocks: blocks(&alignment, &judgement),
        judgement,
    })
}
