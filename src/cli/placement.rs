//! Reports the linear operators that are moved to a point where they compute fewer places.

use unfold::plan::Placed;
use unfold::report::plain;

/// A line for each operator that was moved or could be moved.
pub(super) fn text(placed: &[Placed]) -> String {
    placed.iter().map(line).collect()
}

/// A line for each operator that could be moved but stays.
pub(super) fn stays(placed: &[Placed]) -> String {
    let stay = placed.iter().filter(|placed| !placed.is_moved());
    stay.map(line).collect()
}

fn line(placed: &Placed) -> String {
    let Placed {
        rule,
        at,
        before,
        after,
        why,
    } = placed;
    let unit = match *rule {
        "heads" => "numbers of an operand",
        _ => "multiply-adds",
    };
    let work = format!("{after} {unit} instead of {before}");
    let line = match why {
        None => format!("{at} moves ({rule}): {work}"),
        Some(why) => format!("{at} could move ({rule}): {work}; it stays: {why}"),
    };
    plain(&line) + "\n"
}
