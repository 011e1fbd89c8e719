//! Refusals: the reason why a site stays.
//!
//! A refusal is not an error: unfold looked at a site, and says no, why, and at which node.

use serde::Serialize;

/// A refusal: the reason, and the node of the model at which the affine stops.
///
/// ```
/// use unfold::refusal::{Reason, Refusal};
/// let refusal = Refusal::new(Reason::GraphOutput, "logits");
/// assert_eq!(refusal.to_string(), "is a graph output (at logits)");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The obstacle.
    pub reason: Reason,
    /// Name of the node, or of the value where no node is to blame.
    pub at: String,
}

impl Refusal {
    /// Makes a refusal at a node (or, where no node is to blame, a value).
    pub fn new(reason: Reason, at: impl Into<String>) -> Self {
        Refusal {
            reason,
            at: at.into(),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.reason)?;
        if !self.at.is_empty() {
            write!(f, " (at {})", self.at)?;
        }
        Ok(())
    }
}

impl Reason {
    /// Every reason, with nothing in it that a site would tell.
    ///
    /// ```
    /// use unfold::refusal::Reason;
    /// assert!(Reason::all().any(|reason| reason == Reason::NotLinear(String::new())));
    /// ```
    pub fn all() -> impl Iterator<Item = Self> {
        <Self as strum::IntoEnumIterator>::iter()
    }

    /// The section of `docs/refusals.md`: meaning, an example, and a remedy.
    ///
    /// ```
    /// use unfold::refusal::Reason;
    /// assert!(Reason::Padding.explained().contains("*Remedy:*"));
    /// ```
    pub fn explained(&self) -> &'static str {
        const PAGE: &str = include_str!("../docs/refusals.md");
        let section = PAGE
            .split(&format!("\n### `{}`\n", self.name()))
            .nth(1)
            .unwrap_or_default();
        section.split("\n### ").next().unwrap_or_default().trim()
    }

    /// Its name, as JSON has it: the heading under which `docs/refusals.md` explains it.
    ///
    /// ```
    /// use unfold::refusal::Reason;
    /// assert_eq!(Reason::GraphOutput.name(), "graph-output");
    /// assert_eq!(Reason::NotLinear("Tanh".into()).name(), "not-linear");
    /// ```
    pub fn name(&self) -> &'static str {
        self.into()
    }
}

/// Every reason for which unfold declines. `docs/refusals.md` explains each with an example.
#[derive(
    Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error, strum::EnumIter, strum::IntoStaticStr,
)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "detail")]
#[strum(serialize_all = "kebab-case")]
pub enum Reason {
    /// Taken out by name or kind with `--skip`.
    #[error("skipped on request")]
    Skipped,
    /// The model imports a version of ONNX's operator set that is newer than the rules of unfold.
    #[error("operator set {0} is newer than unfold knows")]
    FutureOpset(i64),
    /// The model imports a version of ONNX's operator set in which constants do not broadcast by themselves.
    #[error("operator set {0} is older than unfold knows")]
    PastOpset(i64),
    /// The model defines a function with the name of an operator, which means what the function says.
    #[error("the model has a function of its own for the operator {0}")]
    Redefined(String),
    /// A body has a constant by a name that is there around it, and engines differ in which of the two is meant.
    #[error("a body has a constant of its own for `{0}`, which is there around it as well")]
    Hidden(String),
    /// The value with the affine on it is an output of the model, which must keep its meaning.
    #[error("is a graph output")]
    GraphOutput,
    /// The value to be changed is an input of the model.
    #[error("comes straight from a graph input")]
    GraphInput,
    /// The body of an If, Loop or Scan reads the value.
    #[error("is read inside a subgraph")]
    CapturedBySubgraph,
    /// Something besides the site reads the value whose producer would have to change.
    #[error("something else reads the producer's result")]
    OtherReader,
    /// Another fold changes the operator already, in a way that leaves no room.
    #[error("another fold changes it already")]
    Changed,
    /// The operator is not linear in its operand (or not known to be).
    #[error("{0} is no linear operator")]
    NotLinear(String),
    /// The number belongs to an activation that is written out, which engines find by its numbers; or something would come
    /// between an operator and its activation.
    #[error("engines run the activation there as one operator, which it would no longer be")]
    Activation,
    /// An operator, or a domain, that unfold does not know.
    #[error("unknown operator {0}")]
    UnknownOperator(String),
    /// An attribute that unfold does not understand, or a value of it that it cannot handle.
    #[error("attribute {0} is not understood")]
    Attribute(String),
    /// Two sides meet and only one of them carries the scale, as on a residual stream.
    #[error("meets a second operand without the same scale, as in a residual stream")]
    ResidualStream,
    /// Two parts of a value are added that carry different scales, as the halves of a rotary embedding.
    #[error("channels with different scales are added, as in a rotary embedding")]
    DifferentScales,
    /// The other operand, which would have to absorb the affine, varies at run time.
    #[error("the other operand is no constant")]
    NotConstant,
    /// The rank or a needed extent is unknown even symbolically.
    #[error("the shape is not known")]
    UnknownShape,
    /// A reshape, or another movement, mixes an axis along which the affine varies with one of unknown
    /// extent.
    #[error("an axis along which the affine varies is mixed with one of unknown extent")]
    MixedAxes,
    /// The affine varies along an axis that the operator does not contract.
    #[error("the affine varies along an axis that the operator cannot take it from")]
    WrongAxis,
    /// The affine varies along an axis that the operator averages, pools or normalizes over.
    #[error("the affine varies along an axis that is reduced")]
    ReducedAxis,
    /// A non-zero shift meets zero padding, and no exact per-position bias is possible.
    #[error("a shift meets zero padding, which it would not reach")]
    Padding,
    /// A constant that the affine depends on could not be computed.
    #[error("constant could not be evaluated: {0}")]
    Constant(String),
    /// The weight, or the value, is quantized: scaling its channels would break its scales and zero points.
    #[error("the weight, or the value, is quantized")]
    Quantized,
    /// BatchNormalization in training mode computes its statistics from the input.
    #[error("BatchNormalization is in training mode")]
    TrainingMode,
    /// The statistics give no finite scale: variance + epsilon is not positive, or NaN.
    #[error("variance + epsilon is not a positive number")]
    BadStatistics,
    /// A parameter is NaN or infinite.
    #[error("a parameter is not finite")]
    NotFinite,
    /// A folded weight does not fit its element type.
    #[error("a folded value is too large: {0}")]
    Overflow(String),
    /// A folded weight is so small that its element type has too few digits for it, or none.
    #[error("a folded value is too small: {0}")]
    Underflow(String),
    /// Numbers that were not there before would be rounded to a type that may not hold them.
    #[error("numbers would be rounded to {0} that it may not hold")]
    Narrow(String),
    /// The operators that would take the place of these compute in float32 only.
    #[error("it is computed in {0}, and what would take its place in float32")]
    ElementType(String),
    /// The per-position constant that the fold needs is larger than is worth keeping.
    #[error("the folded constant would be too large ({0} elements)")]
    TooLarge(usize),
    /// There are more operators, ways between them, or other sites that stay, than are looked at for one site.
    #[error("more operators lie on the way than are looked at")]
    TooFar,
    /// A weight that something else reads too would be copied, and copies would add more than is allowed.
    #[error("a copy of a shared weight would add {0}")]
    Growth(String),
    /// Branches read their value by other strides, or make other extents of it.
    #[error("the branches do not look at the same places")]
    Unaligned,
    /// One merged operator would compute more than the branches do together.
    #[error("one operator would compute more: {0}")]
    MoreWork(String),
    /// An operand of a product repeats an axis along which the other operand has no matrices of its own.
    #[error("it repeats an axis that is none of the stack of matrices, or several")]
    RepeatedAxis,
    /// Something besides LayerNormalizations sees the mean of the channels of a residual stream.
    #[error("{0} sees the mean of the channels")]
    SeesMean(String),
    /// Without the mean of a residual stream there would be as much to compute as with it.
    #[error("nothing is saved: {0}")]
    NoGain(String),
    /// The rest of the affine is 1 and 0 only after rounding.
    #[error("what is left of it is 1 and 0 only as it is rounded")]
    Rounded,
    /// The site's parameters are the identity already.
    #[error("nothing to fold: the affine part is the identity")]
    Identity,
}
