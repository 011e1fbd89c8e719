//! Hidden keys: a part of the queries leaves out the keys that the mask hides from all of its
//! queries.
//!
//! A region with a softmax has a second axis, the axis of the keys. If a mask hides some keys from
//! all queries of a part, the part computes no scores for these keys:
//!
//! ```text
//! pᵢ = Softmax(qᵢ · kᵀ + maskᵢ), oᵢ = pᵢ · v
//! pᵢ = Softmax(qᵢ · k[a..b]ᵀ + maskᵢ[a..b]), oᵢ = pᵢ · v[a..b]   if the other places of maskᵢ are −∞
//! ```
//!
//! The axis of keys is followed from the softmax to the operands before it, and to the product
//! after it that adds up over the keys. In between, a hidden weight stays 0.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use super::axes::{PartRead, carried, reads};
use super::key_axis::KeyAxis;
use super::masks::visible_keys;
use super::region::{RegionNode, SliceRegion};
use crate::analysis::Analysis;
use crate::ir::{NodeId, Reader, ValueId};

/// Operators after a softmax that keep 0 as 0.
const KEEP_ZERO: &[&str] = &[
    "Cast",
    "Dropout",
    "Identity",
    "Mul",
    "Reshape",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];

/// For each place along an axis, the keys that the place sees. `None` if no key is hidden. The
/// error is the reason why hidden keys are computed nevertheless.
pub(super) type Visible = Result<Option<Rc<Vec<Range<usize>>>>, String>;

/// Maps a value of scores, with its axes of queries and keys, to the keys that are visible in it.
pub(super) type VisibleByScores = HashMap<(ValueId, [usize; 2]), Visible>;

/// The axis of keys of a region. `None` if its mask hides no keys from any query.
///
/// # Errors
/// Returns the reason why hidden keys are computed nevertheless.
pub(super) fn find_hidden_keys(
    analysis: &Analysis,
    region: &SliceRegion,
    known: &mut VisibleByScores,
) -> Result<Option<KeyAxis>, String> {
    let softmaxes = region.members.iter();
    for member in softmaxes.filter(|member| analysis.graph.is(member.node, "Softmax")) {
        let Some((scores, keys)) = scores(analysis, member) else {
            continue;
        };
        let axes = [member.axis, keys];
        let visible = known.entry((scores, axes)).or_insert_with(|| {
            let visible = visible_keys(analysis, scores, axes)?;
            Ok(visible.map(Rc::new))
        });
        if let Some(visible) = visible.clone()? {
            return KeyFollower::new(analysis, region)
                .follow(member, keys, visible)
                .map(Some);
        }
    }
    Ok(None)
}

/// The input of a softmax and the axis along which the softmax normalizes. `None` if this is the
/// axis of the region.
fn scores(analysis: &Analysis, member: &RegionNode) -> Option<(ValueId, usize)> {
    let at = analysis.at(member.node);
    let keys = at.softmax_axis(at.rank(0).ok()?).ok()?;
    (keys != member.axis).then_some((at.input(0).ok()?, keys))
}

/// Follows the axis of keys through a region.
struct KeyFollower<'f> {
    analysis: &'f Analysis<'f>,
    members: HashMap<NodeId, &'f RegionNode>,
    operands: HashMap<(NodeId, usize), usize>,
    within: HashMap<ValueId, usize>,
    /// Values whose producers are to be followed.
    ahead: Vec<ValueId>,
}

impl<'f> KeyFollower<'f> {
    fn new(analysis: &'f Analysis, region: &'f SliceRegion) -> Self {
        let members = region.members.iter();
        KeyFollower {
            analysis,
            members: members.map(|member| (member.node, member)).collect(),
            operands: HashMap::new(),
            within: HashMap::new(),
            ahead: vec![],
        }
    }

    fn follow(
        mut self,
        softmax: &RegionNode,
        axis: usize,
        visible: Rc<Vec<Range<usize>>>,
    ) -> Result<KeyAxis, String> {
        let keys = self.follow_all(softmax.node, axis);
        let keys = keys.ok_or("other nodes read the scores or the weights of hidden keys")?;
        Ok(KeyAxis {
            visible,
            keys,
            operands: self.operands,
            within: self.within,
        })
    }

    /// Follows the axis of keys from a softmax in both directions. Returns the number of keys.
    /// `None` if a node of the region needs all keys.
    fn follow_all(&mut self, softmax: NodeId, axis: usize) -> Option<usize> {
        let weights = self.analysis.graph.only_output(softmax)?;
        self.enter(softmax, 0, axis)?;
        self.follow_weights(weights, axis)?;
        self.follow_operands()?;
        let is_complete = self.within.keys().all(|&value| self.is_narrow(value));
        let keys = self.analysis.facts.extent(weights, axis)?;
        is_complete.then_some(keys)
    }

    /// Records that a node reads only a part of the keys from an operand. `None` if the keys are
    /// already known along another axis.
    fn enter(&mut self, node: NodeId, slot: usize, axis: usize) -> Option<()> {
        let value = self.analysis.graph.input(node, slot)?;
        let other = self.operands.insert((node, slot), axis);
        other.is_none_or(|other| other == axis).then_some(())?;
        let is_made = self.analysis.graph.producer(value);
        if is_made.is_some_and(|(maker, _)| self.members.contains_key(&maker)) {
            match self.within.insert(value, axis) {
                Some(other) => (other == axis).then_some(())?,
                None => self.ahead.push(value),
            }
        }
        Some(())
    }

    /// Follows the weights to the products that add up over the keys. `None` if another kind of
    /// node reads the weights, or may turn a weight of 0 into another number.
    fn follow_weights(&mut self, weights: ValueId, axis: usize) -> Option<()> {
        self.within.insert(weights, axis);
        for reader in self.analysis.graph.readers(weights) {
            let Reader::Node { node, input } = *reader else {
                return None;
            };
            if self.is_sum_over_keys(node, input, axis) {
                self.enter(node, input, axis)?;
                let values = self.analysis.at(node).rank(1).ok()?;
                self.enter(node, 1, values.checked_sub(2)?)?;
                continue;
            }
            let op = self.analysis.graph.op(node)?;
            let output = self.analysis.graph.only_output(node)?;
            let axis =
                carried(self.analysis, node, input, axis).filter(|_| KEEP_ZERO.contains(&op))?;
            self.enter_all(node, axis)?;
            self.follow_weights(output, axis)?;
        }
        Some(())
    }

    /// Whether a node is a matrix product whose left operand has the keys along its last axis.
    fn is_sum_over_keys(&self, node: NodeId, slot: usize, axis: usize) -> bool {
        let rank = self.analysis.at(node).rank(0);
        self.analysis.graph.is(node, "MatMul") && slot == 0 && rank == Ok(axis + 1)
    }

    /// Follows the axis of keys up through the nodes that compute the scores and the values. `None`
    /// if one of these nodes needs all keys.
    fn follow_operands(&mut self) -> Option<()> {
        while let Some(value) = self.ahead.pop() {
            let (node, _) = self.analysis.graph.producer(value)?;
            self.enter_all(node, self.within[&value])?;
        }
        Some(())
    }

    /// Records all operands of a node that have the axis of keys of its output. `None` if the node
    /// cannot run for a part of the keys.
    fn enter_all(&mut self, node: NodeId, axis: usize) -> Option<()> {
        let reads = reads(self.analysis, node, axis)?;
        for (slot, read) in reads.iter().enumerate() {
            if let PartRead::Same(own) = *read {
                self.enter(node, slot, own)?;
            }
        }
        Some(())
    }

    /// Whether all readers of a value read a part of the keys.
    fn is_narrow(&self, value: ValueId) -> bool {
        let mut readers = self.analysis.graph.readers(value).iter();
        readers.all(|reader| match reader {
            Reader::Node { node, input } => self.operands.contains_key(&(*node, *input)),
            _ => false,
        })
    }
}
