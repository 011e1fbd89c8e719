//! Reasons why an attention stays in plain operators.

/// The fewest keys for which the kernel is faster than plain operators. With fewer keys, it is as
/// fast, or 3 % slower in windows.
pub(super) const FEWEST_KEYS: usize = 128;

/// The fewest keys for which the kernel is faster although operands or the result must be
/// transposed.
pub(super) const FEWEST_KEYS_TO_TRANSPOSE: usize = 512;

/// A reason why an attention stays in plain operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum AttentionRefusal {
    /// The node is not the Softmax of an attention.
    #[error("no attention")]
    NoAttention,
    /// A mask or a bias is added to the scores. The kernel of MultiHeadAttention then stores all
    /// scores, as plain operators do.
    #[error("the scores have a mask or a bias")]
    Bias,
    /// Another operator is between the products and the Softmax, such as the Tanh of a soft cap.
    #[error("another function of the scores than a scale")]
    Function,
    /// The scale is 0, infinite, or not exact in float32.
    #[error("the scale is no number of float32")]
    Scale,
    /// The scores or the result of the Softmax have another reader, or are an output of the model.
    #[error("another operator reads the scores")]
    OtherReader,
    /// The operands are not float32, the only type of the kernel.
    #[error("the type is not float32")]
    Type,
    /// The ranks, the number of heads or the number of channels are unknown.
    #[error("the shapes are not known")]
    UnknownShape,
    /// Queries, keys and values differ in their batches or heads. Plain products broadcast them,
    /// but the kernel does not.
    #[error("queries, keys and values have different batches or heads")]
    Broadcast,
    /// There may be no keys. Then the plain product is 0, but the kernel divides by 0.
    #[error("the number of keys may be 0")]
    NoKeys,
    /// With few keys, the kernel is not faster.
    #[error("there are fewer than {} keys", FEWEST_KEYS)]
    FewKeys,
    /// The kernel reads rows. Queries, keys or values in another order need a Transpose. Its cost
    /// is worth it only for long sequences.
    #[error(
        "the operands are not in rows, and there are fewer than {} keys",
        FEWEST_KEYS_TO_TRANSPOSE
    )]
    Order,
    /// Only a part of the attention is in the body of a node.
    #[error("a part of it is in a body")]
    Body,
}
