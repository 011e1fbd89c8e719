//! Chooses among candidates that were timed against each other.

use super::statistics;
use crate::report::Interval;

/// A candidate counts as equally fast if the median ratio of its times to those of the fastest
/// candidate is at most this.
const AS_FAST: f64 = 1.01;
/// The maximum ratio of two peaks of memory that count as equal.
const AS_SMALL: f64 = 1.01;

/// The property that a choice minimizes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TuneGoal {
    /// The time of a run.
    Latency,
    /// The peak of memory, among candidates whose time is at most `slowdown` times that of the
    /// fastest one.
    Memory {
        /// The ratio, at least 1.
        slowdown: f64,
    },
}

/// A candidate that ran successfully.
#[derive(Debug, Clone)]
pub(crate) struct TimedCandidate {
    /// The median ratios of this candidate's times to the times of each candidate, in the order of
    /// the candidates: a row of [`ratios`].
    pub ratios: Vec<Interval>,
    /// Its peak of memory in bytes.
    pub peak: u64,
    /// Among equally good candidates, the one with the lowest rank is chosen.
    pub rank: usize,
}

/// The indices of the best candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BestCandidates {
    /// The candidate that serves the goal best.
    pub chosen: usize,
    /// The candidate with the lowest median time.
    pub fastest: usize,
}

/// Chooses the candidate that serves a goal best; `None` if there are no candidates.
///
/// A candidate counts as equally fast if it is within 1 % of the fastest one, or if the 95 %
/// interval of their ratio contains 1. Among equally fast candidates the rank decides, so that the
/// choice does not depend on noise.
pub(crate) fn choose(candidates: &[TimedCandidate], goal: TuneGoal) -> Option<BestCandidates> {
    let fastest = fastest(candidates)?;
    let over_fastest: Vec<Interval> = candidates
        .iter()
        .map(|candidate| candidate.ratios[fastest])
        .collect();
    let eligible: Vec<usize> = match goal {
        TuneGoal::Latency => indices(&over_fastest, is_as_fast),
        TuneGoal::Memory { slowdown } => {
            let in_time = indices(&over_fastest, |ratio| ratio.value <= slowdown);
            smallest(candidates, &in_time)
        }
    };
    let chosen = eligible.into_iter().min_by_key(|&at| candidates[at].rank)?;
    Some(BestCandidates { chosen, fastest })
}

/// Whether a candidate counts as equally fast as the fastest candidate, if `ratio` is the ratio of
/// their times.
fn is_as_fast(ratio: &Interval) -> bool {
    ratio.value <= AS_FAST || ratio.low <= 1.0
}

/// Selects the candidates among `among` whose peak of memory counts as equal to the smallest one.
fn smallest(candidates: &[TimedCandidate], among: &[usize]) -> Vec<usize> {
    let peaks = among.iter().map(|&at| candidates[at].peak);
    let bound = peaks.min().unwrap_or_default() as f64 * AS_SMALL;
    among
        .iter()
        .copied()
        .filter(|&at| candidates[at].peak as f64 <= bound)
        .collect()
}

/// The candidate with the lowest median ratio of its times to those of the first candidate. `None`
/// if there are no candidates.
fn fastest(candidates: &[TimedCandidate]) -> Option<usize> {
    let medians: Vec<f64> = candidates
        .iter()
        .map(|candidate| candidate.ratios[0].value)
        .collect();
    (0..medians.len()).min_by(|&one, &other| medians[one].total_cmp(&medians[other]))
}

/// The indices of the ratios for which `has` holds.
fn indices(ratios: &[Interval], has: impl Fn(&Interval) -> bool) -> Vec<usize> {
    (0..ratios.len()).filter(|&at| has(&ratios[at])).collect()
}

/// For each pair of candidates, the median over the rounds of the ratio of their times, with its 95
/// % interval.
///
/// `seconds` has one list for each candidate, with one time for each round.
pub(crate) fn ratios(seconds: &[Vec<f64>]) -> Vec<Vec<Interval>> {
    seconds
        .iter()
        .map(|own| seconds.iter().map(|other| ratio(own, other)).collect())
        .collect()
}

/// The median over the rounds of the ratio of two times of the same round, with its 95 % interval.
pub(super) fn ratio(seconds: &[f64], reference: &[f64]) -> Interval {
    let ratios: Vec<f64> = seconds
        .iter()
        .zip(reference)
        .map(|(own, other)| own / other)
        .collect();
    statistics::median(&ratios)
}

/// The median of the times, with its 95 % interval.
pub(crate) fn median(seconds: &[f64]) -> Interval {
    statistics::median(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds candidates in the order of their ranks, from the times of their rounds and their
    /// peaks.
    fn measured(times: &[(&[f64], u64)]) -> Vec<TimedCandidate> {
        let seconds: Vec<Vec<f64>> = times.iter().map(|(seconds, _)| seconds.to_vec()).collect();
        let peaks = times.iter().map(|(_, peak)| *peak);
        ratios(&seconds)
            .into_iter()
            .zip(peaks)
            .enumerate()
            .map(|(rank, (ratios, peak))| TimedCandidate { ratios, peak, rank })
            .collect()
    }

    #[test]
    fn ratios_compare_within_a_round() {
        let seconds = [vec![1.0, 2.0, 4.0], vec![2.0, 4.0, 8.0]];
        let all = ratios(&seconds);
        assert_eq!([all[0][0].value, all[0][1].value], [1.0, 0.5]);
        assert_eq!([all[1][0].low, all[1][0].high], [2.0, 2.0]);
    }

    #[test]
    fn fastest_is_chosen_and_rank_breaks_ties() {
        let clearly = measured(&[(&[1.0; 9], 5), (&[0.9; 9], 5), (&[1.1; 9], 5)]);
        let second = BestCandidates {
            chosen: 1,
            fastest: 1,
        };
        assert_eq!(choose(&clearly, TuneGoal::Latency), Some(second));
        // The two candidates differ by half a percent, and the first one has the lower rank.
        let noisy: [&[f64]; 2] = [
            &[1.01, 0.99, 1.0, 1.02, 0.98],
            &[0.99, 1.01, 0.995, 1.0, 1.0],
        ];
        let alike = measured(&[(noisy[0], 5), (noisy[1], 5)]);
        assert_eq!(
            choose(&alike, TuneGoal::Latency).map(|it| it.chosen),
            Some(0)
        );
        assert_eq!(choose(&[], TuneGoal::Latency), None);
    }

    #[test]
    fn smallest_peak_within_the_slowdown_is_chosen() {
        let times = measured(&[(&[1.0; 9], 100), (&[1.08; 9], 50), (&[1.5; 9], 10)]);
        let choice = |slowdown| choose(&times, TuneGoal::Memory { slowdown }).map(|it| it.chosen);
        assert_eq!(choice(1.0), Some(0));
        assert_eq!(choice(1.1), Some(1));
        assert_eq!(choice(2.0), Some(2));
    }
}
