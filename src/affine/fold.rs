//! The vocabulary of folding: what a node does with an affine, by the rule of its operator.
//!
//! The affine of a site propagates *forward*, through every operator that commutes with it, to all
//! readers of the site, or *backward* to the producer of the site's input. The rules of operators that
//! an affine crosses are in `propagate/rules/`, those of linear operators, whose constants absorb it, in
//! `linear/`: one file for each operator family, and one line in the table of the folder.

use serde::Serialize;

use crate::affine::Affine;
pub use crate::analysis::node_view::At;
use crate::hash::HashMap;
use crate::ir::NodeId;
use crate::refusal::Reason;

/// The side from which an affine meets an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// It comes in through this input: `y = f(affine(x))`.
    Operand(usize),
    /// It is wanted on the result: `y = affine(f(x))`.
    Result,
    /// This input is a constant, and the affine is wanted on that constant itself.
    Constant(usize),
    /// Another row is added to each row of the result, times the affine's scale, and the affine's shift.
    Rows {
        /// The layer of the other rows: the operator itself, or a layer beside it that is still unchanged.
        of: NodeId,
        /// The distance to the other row.
        distance: i64,
    },
}

/// One affine that a node absorbs into its constants.
#[derive(Debug, Clone)]
pub struct Fold {
    /// The node that absorbs it.
    pub node: NodeId,
    /// The side from which it comes.
    pub side: Side,
    /// The affine that it absorbs.
    pub affine: Affine,
    /// The site whose affine it is.
    pub site: usize,
}

/// The decision of a rule: the part that the node's constants absorb, and the part that propagates.
#[derive(Debug, Clone, Default)]
pub struct Step {
    /// The affines that the node absorbs, in order; empty where its constants stay.
    pub folds: Vec<(Side, Affine)>,
    /// The affines that propagate: at outputs (forward), or at inputs (backward).
    ///
    /// Backward there may be several ways, each enough by itself: `a·b` is scaled by scaling `a` or
    /// by scaling `b`. Forward there is one.
    pub ways: Vec<Vec<(usize, Affine)>>,
    /// Forward: affines needed on inputs without one, from their producers.
    pub wants: Vec<(usize, Affine)>,
    /// Forward: scales that other factors of a product are to absorb instead: `(x·D)·W = x·(D·W)`.
    pub factors: Vec<(usize, Affine)>,
    /// The input that replaces the result of the node, which has nothing left to compute.
    pub bypass: Option<usize>,
    /// Whether an Add behind the node must hold the shift after the folds, even if the node has a
    /// bias.
    pub by_place: bool,
}

impl Step {
    /// The affine propagates and the node stays.
    pub fn pass_on(at: usize, affine: Affine) -> Self {
        Step {
            ways: vec![vec![(at, affine)]],
            ..Step::default()
        }
    }

    /// Whether the node and its other inputs stay unchanged.
    pub fn only_passes_on(&self) -> bool {
        self.folds.is_empty()
            && self.bypass.is_none()
            && self.wants.is_empty()
            && self.factors.is_empty()
    }

    /// The other factor of a product absorbs all of it.
    pub fn into_factor(slot: usize, affine: Affine) -> Self {
        Step {
            factors: vec![(slot, affine)],
            ways: vec![vec![]],
            ..Step::default()
        }
    }

    /// The node absorbs all of it.
    pub fn taken(side: Side, affine: Affine) -> Self {
        Step {
            folds: vec![(side, affine)],
            ways: vec![vec![]],
            ..Step::default()
        }
    }
}

/// The transfer rule of one operator family. Everything is read or refused: an attribute that a
/// rule does not know is a reason to refuse.
pub trait Rule: Sync {
    /// The operators of the family: those of ONNX by name, others behind the name of their domain and a dot.
    fn ops(&self) -> &'static [&'static str];

    /// Whether an operator, by its domain and its name, is of the family.
    fn is_for(&self, operator: (&str, &str)) -> bool {
        self.ops()
            .iter()
            .any(|name| name.rsplit_once('.').unwrap_or(("", name)) == operator)
    }

    /// Whether it is scale-transparent: with its other inputs constant, it passes a scale as a
    /// scale, or refuses it.
    fn is_scale_transparent(&self) -> bool {
        false
    }

    /// Whether it depends on the numbers of a constant that it does not fold into: after a fold into that
    /// constant, the numbers of the model are no longer valid.
    fn reads_numbers(&self) -> bool {
        false
    }

    /// Checks that an affine of the first input passes unchanged, in both directions. Rules that change
    /// an affine, or absorb it, define [`Rule::forward`] and [`Rule::backward`] instead.
    ///
    /// # Errors
    /// The reason for which it cannot pass.
    fn check_unchanged(&self, at: &At, _: &Affine) -> Result<(), Reason> {
        Err(at.not_linear())
    }

    /// Inputs carry affines (`None`: none): `f(a₀(x₀), a₁(x₁), ...)`. Which step leads to the same
    /// outputs?
    ///
    /// # Errors
    /// The reason for which the affines cannot pass and cannot stay.
    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        self.check_unchanged(at, affine)?;
        Ok(Step::pass_on(0, affine.clone()))
    }

    /// An affine is wanted on one output: `a(f(x))`. Which step gives it?
    ///
    /// # Errors
    /// The reason for which it cannot pass and cannot stay.
    fn backward(&self, at: &At, _output: usize, affine: &Affine) -> Result<Step, Reason> {
        self.check_unchanged(at, affine)?;
        Ok(Step::pass_on(0, affine.clone()))
    }
}

/// The first rule for each operator.
pub(crate) fn by_operator<R: Rule + ?Sized>(
    rules: impl Iterator<Item = &'static R>,
) -> HashMap<(&'static str, &'static str), &'static R> {
    let mut found = HashMap::default();
    for rule in rules {
        for name in rule.ops() {
            found
                .entry(name.rsplit_once('.').unwrap_or(("", name)))
                .or_insert(rule);
        }
    }
    found
}
