//! Random graphs in which regions are sliced into parts.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use unfold::FuseOptions;
use unfold::onnx::Model;
use unfold::onnx::proto::Dim;
use unfold::{MemoryGoal, Slicing};

use crate::Counts;
use crate::common::numbers::Kind;
use crate::common::{check_new_tensors, is_proved_or_listed, judge, text};
use crate::generate::Case;
use crate::streams;
use crate::tape::Tape;

/// The tolerance, relative to the largest number. Affines that fold only in parts are rounded once.
const TOLERANCE: f64 = 2e-6;

/// Slices a random graph. Returns the first error that is found.
pub fn check(bytes: &[u8], counts: &mut Counts) -> Result<(), String> {
    let (choices, base) = bytes.split_at(bytes.len() / 8);
    let mut tape = Tape::new(choices);
    let mut case = if tape.chance(30) {
        streams::normalized(base)
    } else {
        Case::new(base, Kind::Exact)
    };
    if tape.chance(70) {
        close(&mut case);
    }
    let expect = expected(&case, 1 + tape.below(8));
    let slicing = match tape.below(3) {
        0 => Slicing {
            memory: Some(MemoryGoal::Min),
            expect,
            ..Slicing::default()
        },
        more => Slicing {
            parts: Some(1 + more),
            expect,
            ..Slicing::default()
        },
    };
    let found = catch_unwind(AssertUnwindSafe(|| compare(&case, slicing, counts)));
    found
        .unwrap_or_else(|_| Err("a panic".into()))
        .map_err(|why| format!("{why}\n{}", text::print(&case.model)))
}

/// Fixes the batch to the extent for which the graph was generated.
fn close(case: &mut Case) {
    let batch = case.batch as i64;
    for value in &mut case.model.graph_mut().input {
        let shape = value
            .r#type
            .as_mut()
            .and_then(|kind| kind.tensor_type.as_mut()?.shape.as_mut());
        for dim in shape.into_iter().flat_map(|shape| &mut shape.dim) {
            if !matches!(dim.value, Some(Dim::DimValue(_))) {
                dim.value = Some(Dim::DimValue(batch));
            }
        }
    }
}

/// The size of each symbol of the inputs.
fn expected(case: &Case, size: usize) -> BTreeMap<String, usize> {
    let inputs = case.model.graph().input.iter();
    let shapes =
        inputs.filter_map(|input| input.r#type.as_ref()?.tensor_type.as_ref()?.shape.as_ref());
    let dims = shapes.flat_map(|shape| &shape.dim);
    let symbols = dims.filter_map(|dim| match &dim.value {
        Some(Dim::DimParam(symbol)) => Some((symbol.clone(), size)),
        _ => None,
    });
    symbols.collect()
}

fn compare(case: &Case, slicing: Slicing, counts: &mut Counts) -> Result<(), String> {
    let model = &case.model;
    let fuse = |model: &Model, slicing: &Slicing| {
        let options = FuseOptions {
            slicing: slicing.clone(),
            max_growth: f64::INFINITY,
            ..FuseOptions::default()
        };
        unfold::fuse(model, &options).map_err(|error| error.to_string())
    };
    let [plain, fused] = [fuse(model, &Slicing::default())?, fuse(model, &slicing)?];
    let change = fused
        .plan
        .memory
        .clone()
        .ok_or("nothing is told of the memory")?;
    let told = |why: String| format!("{why}\nsliced:\n{}", text::print(&fused.model));
    check_new_tensors(model, &fused).map_err(told)?;
    is_proved_or_listed(model, &fused).map_err(told)?;
    for truth in [true, false] {
        let inputs = judge::inputs(&plain.model, case.batch, truth, Kind::Exact);
        judge::agree(&plain.model, &fused.model, &inputs, TOLERANCE).map_err(told)?;
    }
    for again in [&Slicing::default(), &slicing] {
        let again = fuse(&fused.model, again)?.model;
        if text::print(&again) != text::print(&fused.model) {
            return Err(told(format!(
                "it was not done; then it is\n{}",
                text::print(&again)
            )));
        }
    }
    if slicing.memory.is_some() && change.after > change.before {
        return Err(told(format!("{change:?}")));
    }
    *counts.entry("model".into()).or_default() += 1;
    *counts.entry("cut".into()).or_default() += usize::from(!change.cuts.is_empty());
    Ok(())
}
