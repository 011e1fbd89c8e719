//! Medians and quantiles with their uncertainty.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::report::Interval;

/// The number of bootstrap resamples. With 2,000 resamples, repeating the bootstrap moves an end of
/// the interval by about a tenth of its width.
const RESAMPLES: usize = 2000;

/// The quantile `q` of the samples, interpolated linearly between neighbouring samples. NaN if
/// there are no samples.
pub(super) fn quantile(samples: &[f64], q: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted_quantile(&sorted, q)
}

fn sorted_quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let place = q * last as f64;
    let (low, high) = (
        sorted[place.floor() as usize],
        sorted[place.ceil() as usize],
    );
    low + (high - low) * place.fract()
}

/// The median with its 95 % bootstrap interval: the samples are resampled with replacement, and the
/// interval holds 95 % of the medians of the resamples. The random numbers have a fixed seed, so
/// equal samples give equal intervals.
pub(super) fn median(samples: &[f64]) -> Interval {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| quantile(&drawn_again(samples, &mut rng), 0.5))
        .collect();
    medians.sort_unstable_by(f64::total_cmp);
    let value = quantile(samples, 0.5);
    Interval {
        value,
        low: sorted_quantile(&medians, 0.025),
        high: sorted_quantile(&medians, 0.975),
    }
}

/// Draws as many samples as there are, with replacement.
fn drawn_again(samples: &[f64], rng: &mut ChaCha8Rng) -> Vec<f64> {
    samples
        .iter()
        .map(|_| samples[rng.random_range(0..samples.len())])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_distr::{Distribution, Normal};

    #[test]
    fn quantiles_interpolate_between_samples() {
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), 2.5);
        assert_eq!(quantile(&[0.0, 10.0], 0.95), 9.5);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn median_interval_has_its_nominal_coverage() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let normal = Normal::new(1.0, 0.1).unwrap();
        let held = (0..100)
            .filter(|_| {
                let samples: Vec<f64> = (0..40).map(|_| normal.sample(&mut rng)).collect();
                median(&samples).holds(1.0)
            })
            .count();
        assert!(held >= 88, "{held} of 100");
    }

    #[test]
    fn interval_of_one_sample_is_the_sample() {
        assert_eq!(
            median(&[2.0]),
            Interval {
                value: 2.0,
                low: 2.0,
                high: 2.0
            }
        );
    }
}
