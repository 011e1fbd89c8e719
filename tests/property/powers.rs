//! Scales random streams by a power of two. Every output must be equal bit for bit.

use unfold::FuseOptions;

use crate::Counts;
use crate::common::numbers::Kind;
use crate::common::{check_new_tensors, is_proved_or_listed, judge, operators, options, text};
use crate::streams::normalized;

/// Scales the streams that the bytes determine. Returns the first error that is found.
pub fn check(bytes: &[u8], counts: &mut Counts) -> Result<(), String> {
    let case = normalized(bytes);
    let fuse = |scale_stream| {
        let options = FuseOptions {
            scale_stream,
            ..options()
        };
        unfold::fuse(&case.model, &options)
            .map_err(|error| format!("{error}\n{}", text::print(&case.model)))
    };
    let power = 1 + bytes.first().map_or(0, |byte| u32::from(byte % 12));
    let (folded, scaled) = (fuse(None)?, fuse(Some(power))?);
    let told = |why: String| {
        format!(
            "{why}\n{}\nscaled:\n{}",
            text::print(&folded.model),
            text::print(&scaled.model)
        )
    };
    check_new_tensors(&case.model, &scaled).map_err(told)?;
    is_proved_or_listed(&case.model, &scaled).map_err(told)?;
    for batch in [case.batch, 1] {
        let inputs = judge::inputs(&case.model, batch, true, Kind::Real);
        if !judge::agree(&folded.model, &scaled.model, &inputs, 0.0).map_err(told)?
            && batch == case.batch
        {
            return Err(told("the graph cannot be run".into()));
        }
    }
    let mut count = |what: &str, times: usize| *counts.entry(what.into()).or_default() += times;
    for stream in &scaled.plan.streams {
        count("stream", 1);
        count("stream scaled", usize::from(stream.is_changed()));
    }
    let muls = |model| operators(model).iter().filter(|&&op| op == "Mul").count();
    count("Mul", muls(&scaled.model) - muls(&folded.model));
    Ok(())
}
