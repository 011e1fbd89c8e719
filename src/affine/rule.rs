//! The types of folding: the rule of an operator, and the step that the rule decides for an affine
//! at a node.
//!
//! The affine of a site propagates *forward* to all readers of the site, or *backward* to the
//! producer of the site's input. It crosses every operator that commutes with it. The rules of such
//! operators are in `propagate/rules/`. The rules of linear operators, whose constants absorb an
//! affine, are in `linear/`. Each operator family has one file, and one line in the table of its
//! folder.

use serde::Serialize;

use crate::affine::Affine;
pub(crate) use crate::analysis::node_view::At;
use crate::hash::HashMap;
use crate::ir::NodeId;
use crate::refusal::Reason;

/// The side from which an affine meets an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Side {
    /// The affine is applied to this input: `y = f(affine(x))`.
    Operand(usize),
    /// The affine is needed on the result: `y = affine(f(x))`.
    Result,
    /// This input is a constant, and the affine is needed on the constant itself.
    Constant(usize),
    /// Each row of the result becomes `row + s·other + t`, where `other` is another row of a layer,
    /// and the affine is `s·x + t`.
    Rows {
        /// The layer with the other rows: the node itself, or an adjacent layer that is still
        /// unchanged.
        of: NodeId,
        /// The index of the other row minus the index of the row that changes.
        distance: i64,
    },
}

/// An affine that a node absorbs into its constants.
#[derive(Debug, Clone)]
pub(crate) struct Fold {
    /// The node that absorbs the affine.
    pub node: NodeId,
    /// The side from which the affine meets the node.
    pub side: Side,
    /// The affine that the node absorbs.
    pub affine: Affine,
    /// The site to which the affine belongs.
    pub site: usize,
}

/// The decision of a rule: the affines that the node's constants absorb, and the affines that
/// propagate.
#[derive(Debug, Clone, Default)]
pub(crate) struct Step {
    /// The affines that the node absorbs, in order. Empty if its constants stay unchanged.
    pub folds: Vec<(Side, Affine)>,
    /// The affines that propagate further, each with the index of an output (forward) or of an
    /// input (backward).
    ///
    /// A backward step may have several alternatives, each of which is sufficient. For example,
    /// `a·b` is scaled by scaling `a` or by scaling `b`. A forward step has one alternative.
    pub ways: Vec<Vec<(usize, Affine)>>,
    /// Forward only: affines that are needed on inputs that carry none. The producers of these
    /// inputs must supply them.
    pub wants: Vec<(usize, Affine)>,
    /// Forward only: scales that the other factor of a product absorbs, each with the input of that
    /// factor: `(x·D)·W = x·(D·W)`.
    pub factors: Vec<(usize, Affine)>,
    /// The input that replaces the result of the node, if the node becomes redundant.
    pub bypass: Option<usize>,
    /// Whether the bias after the folds differs from place to place, so that an Add after the node
    /// must hold it even if the node has a bias input.
    pub by_place: bool,
}

impl Step {
    /// A step in which the affine propagates to the output (forward) or input (backward) `at`, and
    /// the node stays unchanged.
    pub(crate) fn pass_on(at: usize, affine: Affine) -> Self {
        Step {
            ways: vec![vec![(at, affine)]],
            ..Step::default()
        }
    }

    /// Whether affines only pass in this step, so that the node and all its constants stay
    /// unchanged and no other input needs an affine.
    pub(crate) fn only_passes_on(&self) -> bool {
        self.folds.is_empty()
            && self.bypass.is_none()
            && self.wants.is_empty()
            && self.factors.is_empty()
    }

    /// A step in which the factor at the input `slot` of a product absorbs the whole affine of the
    /// other factor.
    pub(crate) fn into_factor(slot: usize, affine: Affine) -> Self {
        Step {
            factors: vec![(slot, affine)],
            ways: vec![vec![]],
            ..Step::default()
        }
    }

    /// A step in which the node absorbs the whole affine from `side`.
    pub(crate) fn taken(side: Side, affine: Affine) -> Self {
        Step {
            folds: vec![(side, affine)],
            ways: vec![vec![]],
            ..Step::default()
        }
    }
}

/// The transfer rule of one operator family. A rule reads every attribute of a node, and refuses a
/// node with an attribute that it does not know.
pub(crate) trait Rule: Sync {
    /// The operators of the family. An operator of ONNX is given by its name, any other operator by
    /// its domain, a dot and its name.
    fn ops(&self) -> &'static [&'static str];

    /// Whether an operator, given by its domain and name, belongs to the family.
    fn is_for(&self, operator: (&str, &str)) -> bool {
        self.ops()
            .iter()
            .any(|name| name.rsplit_once('.').unwrap_or(("", name)) == operator)
    }

    /// Whether the operators are scale-transparent: if all inputs except one are constant, the
    /// operators pass a scale of that input without adding a shift, or refuse the scale.
    fn is_scale_transparent(&self) -> bool {
        false
    }

    /// Whether the rule reads the elements of a constant that absorbs nothing of the affine. If a
    /// fold changes a constant of a node, such a rule no longer applies to the node, because the
    /// rule would read the elements before the fold.
    fn reads_numbers(&self) -> bool {
        false
    }

    /// Checks that an affine on the first input passes unchanged, in both directions. A rule that
    /// changes or absorbs an affine implements [`Rule::forward`] and [`Rule::backward`] instead.
    ///
    /// # Errors
    /// The reason why the affine cannot pass.
    fn check_unchanged(&self, at: &At, _: &Affine) -> Result<(), Reason> {
        Err(at.not_linear())
    }

    /// Finds the step for a node whose inputs carry affines. The folds of the step, and the affines
    /// that propagate to the outputs, together give `f(a₀(x₀), a₁(x₁), ...)`. `None` is an input
    /// without an affine.
    ///
    /// # Errors
    /// The reason why the affines can neither pass nor fold here.
    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        self.check_unchanged(at, affine)?;
        Ok(Step::pass_on(0, affine.clone()))
    }

    /// Finds the step for a node of which one output needs the affine `a`. The folds of the step,
    /// and the affines that propagate to the inputs, together give `a(f(x))`.
    ///
    /// # Errors
    /// The reason why the affine can neither pass nor fold here.
    fn backward(&self, at: &At, _output: usize, affine: &Affine) -> Result<Step, Reason> {
        self.check_unchanged(at, affine)?;
        Ok(Step::pass_on(0, affine.clone()))
    }
}

/// Maps each operator to the first rule whose [`Rule::ops`] contain it.
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
