//! Reasons why an attention stays in plain operators.

/// The fewest keys for which the kernel gains. With fewer, it is as fast, or 3 % slower in windows.
pub(super) const FEWEST_KEYS: usize = 128;

/// The fewest keys for which it gains although operands or the result must be transposed.
pub(super) const FEWEST_KEYS_TO_TRANSPOSE: usize = 512;

/// A reason why an attention stays in plain operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum AttentionRefusal {
    /// The node is not the Softmax of an attention.
    #[error("no attention")]
    NoAttention,
    /// A mask or a bias is added to the scores. With it the kernel of MultiHeadAttention keeps all
    /// scores.
    #[error("the scores have a mask or a bias")]
    Bias,
    /// An operator between the products and the Softmax, such as the Tanh of a soft cap.
    #[error("another function of the scores than a scale")]
    Function,
    /// The kernel multiplies by a number of float32 other than 0.
    #[error("the scale is no number of float32")]
    Scale,
    /// The scores or the shares have another reader, or are an output.
    #[error("another operator reads the scores")]
    OtherReader,
    /// The kernel exists for float32.
    #[error("the type is not float32")]
    Type,
    /// The ranks, the number of heads or the number of channels are unknown.
    #[error("the shapes are not known")]
    UnknownShape,
    /// Queries, keys and values differ in their batches or heads, which a product broadcasts.
    #[error("queries, keys and values have different batches or heads")]
    Broadcast,
    /// Without keys the product is 0, and the kernel divides by 0.
    #[error("the number of keys may be 0")]
    NoKeys,
    /// With few keys, the kernel gains nothing.
    #[error("there are fewer than {} keys", FEWEST_KEYS)]
    FewKeys,
    /// The kernel reads rows. Queries, keys or values in another order need a Transpose, whose cost
    /// only long sequences are worth.
    #[error(
        "the operands are not in rows, and there are fewer than {} keys",
        FEWEST_KEYS_TO_TRANSPOSE
    )]
    Order,
    /// A body contains a part of the attention.
    #[error("a part of it is in a body")]
    Body,
}
