//! Shows the result of each pass to an observer, for instance to a prover of passes.

use crate::affine::plan::Stored;
use crate::fuse::pass::{Context, Effect, Pass};
use crate::onnx::Model;

/// The result of one pass.
pub struct PassResult<'p> {
    /// The name of the pass.
    pub pass: &'static str,
    /// Whether the pass preserves the function of the model in exact arithmetic.
    pub is_exact: bool,
    /// The model before and after the pass, with all flattened bodies restored. `None` if the
    /// bodies cannot be restored between two passes.
    pub models: Option<[&'p Model; 2]>,
    /// The tensors that the pass added to the model. Their formulas read constants of the model
    /// before the pass.
    pub tensors: &'p [Stored],
}

/// Shows the effect of a pass to an observer, unless the pass is required or changed nothing.
pub(super) fn observe(
    observer: &dyn Fn(&PassResult),
    pass: &dyn Pass,
    context: &Context,
    effect: &Effect,
    tensors: &[Stored],
) {
    let show = |models: Option<[&Model; 2]>| {
        observer(&PassResult {
            pass: pass.name(),
            is_exact: pass.is_exact(),
            models,
            tensors,
        });
    };
    // The required pass only restores bodies. It is not shown, because flattened models are shown
    // with restored bodies anyway.
    if pass.is_required() {
        return;
    }
    let bases = context.bases;
    match (effect, bases.flat.get()) {
        (Effect::Model(made), Some(flat)) if context.is_flat() => {
            let restored = flat.restore(context.model()).zip(flat.restore(made));
            show(restored.as_ref().map(|(before, after)| [before, after]));
        }
        (Effect::Model(made), _) => show(Some([context.result_or_inlined(), made])),
        (Effect::Base, None) => show(Some([bases.model, bases.inlined()])),
        _ => {}
    }
}
