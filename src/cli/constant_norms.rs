//! Reports the normalizers that are replaced by constants, and the variances of their inputs.

use unfold::measurements::VarianceMargin;
use unfold::plan::{Constancy, ConstantNorm, Plan};
use unfold::report::plain;
use unfold::run::Failure;

/// The normalizers that a plan replaces by constants.
pub(super) fn taken_as_constant(plan: &Plan) -> Vec<&ConstantNorm> {
    let norms = plan.constant.iter();
    norms.filter(|norm| norm.is_constant()).collect()
}

/// Reports the normalizers that are replaced by constants, the normalizers that stay although their
/// ε is large, and the variances.
pub(super) fn text(plan: &Plan, margin: Option<&Result<VarianceMargin, Failure>>) -> String {
    let mut lines = String::new();
    for norm in &plan.constant {
        if let Constancy::Kept { why } = &norm.outcome {
            let epsilon = norm.epsilon;
            lines += &(plain(&format!(
                "{} stays, with ε = {epsilon:.0e}: {why}",
                norm.name
            )) + "\n");
        }
    }
    let constant = taken_as_constant(plan);
    if constant.is_empty() {
        return lines;
    }
    lines + &assumed(&constant) + &measured(margin)
}

/// A line for each variance limit, with the normalizers that are constant below it.
pub(super) fn assumed(constant: &[&ConstantNorm]) -> String {
    let mut lines = String::new();
    let mut limits: Vec<f64> = constant.iter().map(|norm| norm.limit).collect();
    limits.sort_by(f64::total_cmp);
    limits.dedup();
    for limit in limits {
        let names = constant.iter().filter(|norm| norm.limit == limit);
        let names: Vec<&str> = names.map(|norm| &*norm.name).collect();
        let line = format!(
            "constant while each variance is below {limit}: {}",
            names.join(", ")
        );
        lines += &(plain(&line) + "\n");
    }
    lines
}

/// Reports the largest variance in a run, compared with the limit of its normalizer.
fn measured(margin: Option<&Result<VarianceMargin, Failure>>) -> String {
    match margin {
        Some(Ok(VarianceMargin {
            largest,
            of_limit,
            error,
        })) => {
            let beyond = if *of_limit < 1.0 {
                String::new()
            } else {
                format!(", beyond which results differ by a part of up to {error:.1e}")
            };
            format!(
                "the largest variance in the run is {largest:.2}, {of_limit:.1e} of the limit{beyond}\n"
            )
        }
        Some(Err(failure)) => {
            let failure = plain(&failure.to_string());
            format!("how large variances are was not measured: {failure}\n")
        }
        None => String::new(),
    }
}
