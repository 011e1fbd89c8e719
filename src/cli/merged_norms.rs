//! Reports the merged normalizers and their error.

use unfold::EpsilonError;
use unfold::plan::MergedNorm;
use unfold::report::plain;
use unfold::run::Failure;

/// A line for each merged normalizer, and a line about the error if it was measured.
pub(super) fn text(merged: &[MergedNorm], slack: Option<&Result<EpsilonError, Failure>>) -> String {
    let mut lines = String::new();
    for MergedNorm { name, followers } in merged {
        let followers: Vec<&str> = followers.iter().map(|follower| &*follower.name).collect();
        lines += &(plain(&format!("{name} is gone, before {}", followers.join(", "))) + "\n");
    }
    let epsilon = merged
        .iter()
        .flat_map(|norm| &norm.followers)
        .map(|follower| follower.epsilon);
    let Some(epsilon) = epsilon.reduce(f64::max) else {
        return lines;
    };
    lines += &match slack {
        Some(Ok(EpsilonError { bound })) => {
            format!(
                "what follows makes the same up to a part of {bound:.1e}, on the inputs of the run\n"
            )
        }
        Some(Err(failure)) => {
            format!(
                "how far that is from the model was not measured: {}\n",
                plain(&failure.to_string())
            )
        }
        None => format!(
            "where it sees a variance v instead of u, that is the same up to {:.0e}·|1/u - 1/v|\n",
            epsilon / 2.0
        ),
    };
    lines
}
