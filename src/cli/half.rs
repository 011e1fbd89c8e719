//! The options for half precision (`--to`), and the report on the conversion.

use std::collections::BTreeMap;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use strum::VariantNames;
use unfold::HalfError;
use unfold::plan::{HalfPlan, WideReason};
use unfold::report::plain;
use unfold::run::Failure;
use unfold::{EndType, HalfType};

/// Whether and how the result is converted to half precision.
#[derive(Debug, clap::Args)]
pub(crate) struct HalfArgs {
    /// Converts the folded model to half precision: weights are rounded once, residual streams are scaled by a power of
    /// two where they are too large (--scale-stream), constants of masks are brought into range. Statistics of
    /// normalizers, arithmetic on positions, and operators without a half form stay in float32
    #[arg(long, value_name = "TYPE", value_parser = half_types())]
    pub(crate) to: Option<HalfType>,

    /// The type of inputs and outputs, with --to: float32 keeps them, half converts those in float32
    #[arg(long, value_name = "TYPE", value_parser = end_types(), default_value_t = EndType::Float32, requires = "to")]
    pub(crate) io: EndType,
}

fn half_types() -> impl TypedValueParser<Value = HalfType> {
    PossibleValuesParser::new(HalfType::VARIANTS)
        .map(|name| name.parse().unwrap_or(HalfType::Float16))
}

fn end_types() -> impl TypedValueParser<Value = EndType> {
    PossibleValuesParser::new(EndType::VARIANTS).map(|name| name.parse().unwrap_or_default())
}

/// Reports the number of operators in half, the operators that stay in float32, and the errors.
pub(crate) fn text(plan: Option<&HalfPlan>, error: Option<&Result<HalfError, Failure>>) -> String {
    let Some(plan) = plan else {
        return String::new();
    };
    let HalfPlan {
        to,
        operators,
        constants,
        casts,
        wide,
        masks,
    } = plan;
    let mut lines =
        format!("{to}: {operators} operators and {constants} constants, {casts} Casts added\n");
    let mut reasons: BTreeMap<WideReason, usize> = BTreeMap::new();
    for operator in wide {
        *reasons.entry(operator.why).or_default() += 1;
    }
    for (reason, count) in reasons {
        lines += &format!("{count} operators stay in float32: {}\n", reason.text());
    }
    for mask in masks {
        let line = format!(
            "the mask {} has {:.3e} for {:.3e}",
            mask.name, mask.to, mask.from
        );
        lines += &(plain(&line) + "\n");
    }
    lines + &measured(to, error)
}

/// Reports the errors of a run in which each value is rounded to half precision.
fn measured(to: &str, error: Option<&Result<HalfError, Failure>>) -> String {
    match error {
        Some(Ok(found)) => {
            let strict = in_words(found.error, found.overflow.as_deref());
            let naive = in_words(found.naive_error, found.naive_overflow.as_deref());
            format!(
                "each value rounded to {to}: {strict}; without what stays in float32: {naive}\n"
            )
        }
        Some(Err(failure)) => {
            let failure = plain(&failure.to_string());
            format!("the error in {to} was not measured: {failure}\n")
        }
        None => String::new(),
    }
}

fn in_words(error: Option<f64>, overflow: Option<&str>) -> String {
    match (error, overflow) {
        (Some(error), None) => format!("error {error:.1e}"),
        (Some(error), Some(at)) => plain(&format!("error {error:.1e}, not finite at {at}")),
        (None, at) => {
            let at = at.map_or_else(String::new, |at| format!(" at {at}"));
            plain(&format!("not finite{at}"))
        }
    }
}
