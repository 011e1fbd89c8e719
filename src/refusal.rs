//! The reasons why a site does not fold.
//!
//! A refusal is not an error, but reports why unfold does not fold a site, and which node causes
//! this.

use serde::Serialize;

/// A refusal: the reason, and the node of the model that causes it.
///
/// ```
/// use unfold::refusal::{Reason, Refusal};
/// let refusal = Refusal::new(Reason::GraphOutput, "logits");
/// assert_eq!(refusal.to_string(), "is a graph output (at logits)");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Refusal {
    /// The reason.
    pub reason: Reason,
    /// The name of the node, or of the value if no node is the cause.
    pub at: String,
}

impl Refusal {
    /// Creates a refusal at a node, or at a value if no node is the cause.
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
    /// All reasons, with empty details.
    ///
    /// ```
    /// use unfold::refusal::Reason;
    /// assert!(Reason::all().any(|reason| reason == Reason::NotLinear(String::new())));
    /// ```
    pub fn all() -> impl Iterator<Item = Self> {
        <Self as strum::IntoEnumIterator>::iter()
    }

    /// The section of `docs/refusals.md` about the reason: its meaning, an example and a remedy.
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

    /// The option of `unfold fuse` with which the site may fold, and the condition for this; `None`
    /// if no option helps.
    ///
    /// ```
    /// use unfold::refusal::Reason;
    /// assert!(Reason::Growth(String::new()).option().unwrap().contains("--max-growth"));
    /// assert_eq!(Reason::GraphOutput.option(), None);
    /// ```
    pub fn option(&self) -> Option<&'static str> {
        match self {
            Self::Skipped => Some("without --skip it may fold"),
            Self::Growth(_) => Some("a larger --max-growth allows it"),
            Self::UnknownShape | Self::MixedAxes | Self::Padding => {
                Some("if an open dimension is the obstacle, --fix NAME=SIZE removes it")
            }
            _ => None,
        }
    }

    /// The name in JSON, which is also the heading in `docs/refusals.md`.
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

/// The reasons why unfold refuses a fold. `docs/refusals.md` explains each with an example.
#[derive(
    Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error, strum::EnumIter, strum::IntoStaticStr,
)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "kind", content = "detail")]
#[strum(serialize_all = "kebab-case")]
pub enum Reason {
    /// The site was skipped by name or kind with `--skip`.
    #[error("skipped on request")]
    Skipped,
    /// The model imports a version of ONNX's operator set that is newer than the rules of unfold.
    #[error("operator set {0} is newer than unfold knows")]
    FutureOpset(i64),
    /// The model imports a version of ONNX's operator set in which constants do not broadcast
    /// automatically.
    #[error("operator set {0} is older than unfold knows")]
    PastOpset(i64),
    /// The model defines a function that replaces an operator of the same name.
    #[error("the model defines its own function for the operator {0}")]
    Redefined(String),
    /// A constant of a body has the name of a value of an enclosing graph, and engines disagree
    /// which of the two is read.
    #[error("a body has a constant `{0}`, a name that also exists around the body")]
    Hidden(String),
    /// The value with the affine is an output of the model, so it must not change.
    #[error("is a graph output")]
    GraphOutput,
    /// The value that would change is an input of the model.
    #[error("is a graph input")]
    GraphInput,
    /// The body of an If, Loop or Scan reads the value.
    #[error("is read inside a subgraph")]
    CapturedBySubgraph,
    /// An operator outside the site reads the value whose producer would change.
    #[error("something else reads the producer's result")]
    OtherReader,
    /// Another fold already changes the operator in an incompatible way.
    #[error("another fold changes it already")]
    Changed,
    /// The operator is not linear in its operand, or not known to be.
    #[error("{0} is no linear operator")]
    NotLinear(String),
    /// The constant belongs to an activation of several operators, which engines recognize by its
    /// constants. Or the fold would insert an operator between another operator and its activation.
    #[error("engines run this activation as one operator, and would no longer do so")]
    Activation,
    /// The operator or its domain is unknown to unfold.
    #[error("unknown operator {0}")]
    UnknownOperator(String),
    /// The node has an attribute that unfold does not know, or an attribute with a value that
    /// unfold does not support.
    #[error("attribute {0} is not understood")]
    Attribute(String),
    /// Two operands are added, and only one of them carries the scale, as on a residual stream.
    #[error("meets a second operand without the same scale, as in a residual stream")]
    ResidualStream,
    /// Two parts of a value that carry different scales are added, such as the halves in a rotary
    /// embedding.
    #[error("channels with different scales are added, as in a rotary embedding")]
    DifferentScales,
    /// The other operand, which would absorb the affine, varies at run time.
    #[error("the other operand is no constant")]
    NotConstant,
    /// The rank or a required extent is unknown even symbolically.
    #[error("the shape is not known")]
    UnknownShape,
    /// A reshape or another movement mixes an axis along which the affine varies with an axis of
    /// unknown extent.
    #[error("an axis along which the affine varies is mixed with one of unknown extent")]
    MixedAxes,
    /// The affine varies along an axis that the operator does not contract.
    #[error("the affine varies along an axis that the operator does not contract")]
    WrongAxis,
    /// The affine varies along an axis over which the operator averages, pools or normalizes.
    #[error("the affine varies along an axis that is reduced")]
    ReducedAxis,
    /// The affine has a shift, which would not be added to the zeros of the padding, and the bias
    /// for each position cannot be computed exactly.
    #[error("a shift becomes a bias that differs from place to place, as at zero padding")]
    Padding,
    /// A constant on which the affine depends could not be computed.
    #[error("constant could not be evaluated: {0}")]
    Constant(String),
    /// The operator computes with quantized codes, or a shift would have to be folded into a
    /// quantized weight.
    #[error("the weight, or the value, is quantized")]
    Quantized,
    /// The affine varies between elements of a quantized weight that share one scale.
    #[error(
        "the granularity of the quantization: elements that share a scale would need different factors"
    )]
    Granularity,
    /// BatchNormalization in training mode computes its statistics from the input.
    #[error("BatchNormalization is in training mode")]
    TrainingMode,
    /// The statistics imply no finite scale: variance + epsilon is not positive, or is NaN.
    #[error("variance + epsilon is not a positive number")]
    BadStatistics,
    /// A parameter is NaN or infinite.
    #[error("a parameter is not finite")]
    NotFinite,
    /// The affine adds 0, which turns −0 into +0, and a later operator observes the sign of a zero.
    #[error("it adds 0, and an operator after it observes the sign of a zero")]
    ZeroSign,
    /// A folded weight exceeds the range of its element type.
    #[error("a folded value is too large: {0}")]
    Overflow(String),
    /// A folded weight is so small that its element type represents it with too few digits, or as
    /// 0.
    #[error("a folded value is too small: {0}")]
    Underflow(String),
    /// The fold would round new values to a type that may not represent them.
    #[error("new values would be rounded to {0}, which may not represent them")]
    Narrow(String),
    /// The fold would write operators that compute only in float32.
    #[error("it is computed in {0}, and its replacement would be computed in float32")]
    ElementType(String),
    /// The constant for each position that the fold requires is too large.
    #[error("the folded constant would be too large ({0} elements)")]
    TooLarge(usize),
    /// The search for the fold exceeds the limit for one site: it would inspect too many operators,
    /// paths between them, or other remaining sites.
    #[error("more operators lie on the way than are inspected")]
    TooFar,
    /// A weight with other readers would be copied, or a bias would differ from place to place, and
    /// the new tensors would exceed the limit for growth.
    #[error("a copy of a shared weight, or a bias for each place, would add {0}")]
    Growth(String),
    /// The branches read their input with different strides, or return different extents.
    #[error("the branches read different places")]
    Unaligned,
    /// The merged operator would compute more than the branches together.
    #[error("one operator would compute more: {0}")]
    MoreWork(String),
    /// An operand of a product repeats an axis along which the other operand has no separate
    /// matrices.
    #[error("it repeats several axes, or an axis that does not index the stack of matrices")]
    RepeatedAxis,
    /// An operator other than a LayerNormalization depends on the mean over the channels of a
    /// residual stream.
    #[error("{0} sees the mean of the channels")]
    SeesMean(String),
    /// The change of a residual stream would not save any computation.
    #[error("nothing is saved: {0}")]
    NoGain(String),
    /// The ε of a normalizer is large, but `variance + ε` rounds to ε only for small variances.
    #[error("epsilon is all of variance + epsilon only for variances below {0}")]
    SmallEpsilon(String),
    /// The scale and the shift of the remaining affine are 1 and 0 only because of rounding.
    #[error("the remaining affine is 1 and 0 only after rounding")]
    Rounded,
    /// The parameters of the site are already the identity.
    #[error("nothing to fold: the affine part is the identity")]
    Identity,
}
