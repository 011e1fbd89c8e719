//! An observer of the passes, such as a proof of each pass.

use crate::affine::plan::Stored;
use crate::fuse::pass::{Context, Effect, Pass};
use crate::onnx::Model;

/// The result of one pass.
pub struct PassResult<'p> {
    /// The name of the pass.
    pub pass: &'static str,
    /// Whether the pass preserves the function of the model in exact arithmetic.
    pub is_exact: bool,
    /// The model before and after the pass, with all bodies of control flow restored. `None` if the
    /// bodies cannot be restored between two passes.
    pub models: Option<[&'p Model; 2]>,
    /// The tensors that are in the model after the pass but not in the one before it, as formulas
    /// over constants of the one before it.
    pub tensors: &'p [Stored],
}

/// Shows the result of a pass to an observer.
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
    // A flattened model is shown with its bodies restored.
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
