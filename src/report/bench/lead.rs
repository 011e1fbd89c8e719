//! Writes the first sentence of a report: the gain of the fused variant in time and memory.

use super::data::{Interval, Measurement, Ratio, Setting};
use super::sentences::is_same_size;

const FUSED: &str = "fused";
const AS_EXPORTED: &str = "as exported";
const FLOOR: &str = "floor";

/// Writes a sentence such as `fused is 16 % faster than as exported, 59 % faster than LN twin; peak
/// memory the same`. `None` if fewer than two variants ran.
pub(super) fn lead(setting: &Setting) -> Option<String> {
    let (name, measurement) = subject(setting)?;
    let ratios = references(name, measurement);
    let first = &ratios.first()?.reference;
    let compared: Vec<String> = ratios.iter().map(|ratio| in_words(ratio)).collect();
    let memory = measured(setting, first).map(|reference| memory(measurement, reference));
    Some(format!(
        "{name} is {}{}",
        compared.join(", "),
        memory.unwrap_or_default()
    ))
}

/// The variant that the sentence describes: `fused` if it ran, else the last one that ran. `None`
/// if no variant ran.
fn subject(setting: &Setting) -> Option<(&str, &Measurement)> {
    let fused = measured(setting, FUSED).map(|measurement| (FUSED, measurement));
    let last = setting.ran().last();
    fused.or(last.map(|(_, name, measurement)| (name, measurement)))
}

/// The ratios to other variants, with the exported file first. The floor is left out because it
/// computes a different function.
fn references<'m>(name: &str, measurement: &'m Measurement) -> Vec<&'m Ratio> {
    let ratios = measurement.ratios.iter();
    let mut ratios: Vec<&Ratio> = ratios
        .filter(|ratio| ratio.reference != name && ratio.reference != FLOOR)
        .collect();
    ratios.sort_by_key(|ratio| ratio.reference != AS_EXPORTED);
    ratios
}

fn measured<'s>(setting: &'s Setting, name: &str) -> Option<&'s Measurement> {
    let mut ran = setting.ran();
    ran.find(|(_, variant, _)| *variant == name)
        .map(|(.., measurement)| measurement)
}

fn in_words(ratio: &Ratio) -> String {
    let other = &ratio.reference;
    let Interval { value, .. } = ratio.ratio;
    match ratio.is_different() {
        None => format!("perhaps faster or slower than {other} (too few rounds to tell)"),
        Some(false) => format!("not measurably faster or slower than {other}"),
        Some(true) if value < 1.0 => format!("{:.0} % faster than {other}", 100.0 * (1.0 - value)),
        Some(true) => format!("{:.0} % slower than {other}", 100.0 * (value - 1.0)),
    }
}

fn memory(own: &Measurement, reference: &Measurement) -> String {
    let (own, reference) = (own.memory.peak(), reference.memory.peak());
    let change = 100.0 * (own as f64 / reference.max(1) as f64 - 1.0);
    match own < reference {
        _ if is_same_size(own.min(reference), own.max(reference)) => {
            "; peak memory the same".to_owned()
        }
        true => format!("; peak memory {:.0} % lower", -change),
        false => format!("; peak memory {change:.0} % higher"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::bench::data::Attempt;
    use crate::report::bench::testing::report;

    fn ran<'s>(setting: &'s mut Setting, name: &str) -> &'s mut Measurement {
        let mut variants = setting.variants.iter_mut();
        let variant = variants.find(|variant| variant.name == name).unwrap();
        match &mut variant.outcome {
            Attempt::Ran(measurement) => measurement,
            Attempt::Failed { reason } => panic!("{reason}"),
        }
    }

    fn ratio(reference: &str, low: f64, value: f64, high: f64) -> Ratio {
        Ratio {
            reference: reference.into(),
            ratio: Interval { value, low, high },
            rounds: 20,
        }
    }

    #[test]
    fn the_gain_over_the_file_comes_first() {
        let mut setting = report().settings.remove(0);
        let fused = ran(&mut setting, "fused");
        fused.ratios = vec![
            ratio("LN twin", 0.4, 0.41, 0.42),
            ratio("floor", 1.0, 1.1, 1.2),
            ratio("as exported", 0.83, 0.84, 0.85),
            ratio("fused", 1.0, 1.0, 1.0),
        ];
        let sentence = lead(&setting).unwrap();
        assert_eq!(
            sentence,
            "fused is 16 % faster than as exported, 59 % faster than LN twin; peak memory the same"
        );
    }

    #[test]
    fn less_memory_and_no_difference_in_time_are_named() {
        let mut setting = report().settings.remove(0);
        let fused = ran(&mut setting, "fused");
        fused.ratios = vec![ratio("as exported", 0.9, 0.99, 1.1)];
        fused.memory.heap_peak = Some(20_000_000);
        let sentence = lead(&setting).unwrap();
        assert_eq!(
            sentence,
            "fused is not measurably faster or slower than as exported; peak memory 20 % lower"
        );
    }

    #[test]
    fn models_that_a_user_named_are_compared_with_the_first() {
        let mut setting = report().settings.remove(0);
        setting.variants.truncate(2);
        setting.variants[0].name = "before".into();
        setting.variants[1].name = "after".into();
        ran(&mut setting, "after").ratios = vec![ratio("before", 1.1, 1.2, 1.3)];
        let sentence = lead(&setting).unwrap();
        assert_eq!(
            sentence,
            "after is 20 % slower than before; peak memory the same"
        );
    }

    #[test]
    fn one_variant_has_no_sentence() {
        let mut setting = report().settings.remove(0);
        setting.variants.truncate(1);
        assert_eq!(lead(&setting), None);
    }
}
