//! Identity, Dropout at inference, Cast and CastLike between float types.
//!
//! `f(s·x + t) = s·f(x) + t`.

use crate::affine::Affine;
use crate::fold::{At, Rule, Step};
use crate::onnx::tensor::DataType;
use crate::refusal::Reason;

/// Operators that hand their first input on.
pub struct Pass;

impl Rule for Pass {
    fn ops(&self) -> &'static [&'static str] {
        &["Identity", "Dropout", "Cast", "CastLike"]
    }

    fn hands_on(&self) -> bool {
        true
    }

    fn forward(&self, at: &At, inputs: &[Option<Affine>]) -> Result<Step, Reason> {
        let affine = at.only(inputs, 0)?;
        check(at)?;
        Ok(Step::go_on(0, affine.clone()))
    }

    fn backward(&self, at: &At, output: usize, affine: &Affine) -> Result<Step, Reason> {
        check(at)?;
        if output != 0 {
            return Err(Reason::NotLinear("the mask of Dropout".into()));
        }
        Ok(Step::go_on(0, affine.clone()))
    }
}

fn check(at: &At) -> Result<(), Reason> {
    match at.proto().op_type() {
        op @ ("Cast" | "CastLike") => {
            let to = match op {
                "Cast" => at.proto().cast_to(),
                _ => at.facts.data_type(at.input(1)?),
            };
            if !to.is_some_and(DataType::is_float) {
                return Err(Reason::NotLinear(format!("{op} to a type that is no float")));
            }
        }
        "Dropout" => {
            // Opset 12 made training a run-time input.
            let training = at.graph.input(at.node, 2).is_some();
            let is_off = training && at.ints(2)?.is_some_and(|values| values.iter().all(|&v| v == 0));
            if training && !is_off {
                return Err(Reason::TrainingMode);
            }
        }
        _ => {}
    }
    Ok(())
}
