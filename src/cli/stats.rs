//! Reports the passes of a run and their proofs.

use std::collections::BTreeSet;

use comfy_table::CellAlignment;
use unfold::plan::PassStats;
use unfold::prove_passes::PassProof;
use unfold::report::plain;

use super::out::{self, Paint, Tone};

/// A row for each pass that ran.
pub(super) fn table(passes: &[PassStats], paint: Paint) -> String {
    let mut table = paint.table(&["pass", "runs", "changes", "operators", "seconds"]);
    for pass in passes {
        table.add_row([
            out::cell(pass.name),
            out::cell(pass.runs),
            out::cell(pass.changes),
            out::cell(operators(pass)),
            out::cell(format!("{:.4}", pass.seconds)),
        ]);
    }
    let numbers = table.column_iter_mut().skip(1);
    numbers.for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    out::lines(&table)
}

/// The number of operators that a pass added (`+`) or removed (`-`).
fn operators(pass: &PassStats) -> String {
    match -pass.operators {
        0 => "=".to_owned(),
        change => format!("{change:+}"),
    }
}

/// One line about all changes that are proved, and a line for each change that is not.
pub(super) fn proofs(proofs: &[PassProof], paint: Paint) -> String {
    if proofs.is_empty() {
        return String::new();
    }
    let proved = proofs.iter().filter(|proof| proof.is_proved()).count();
    let passes: BTreeSet<&str> = proofs.iter().map(|proof| proof.pass).collect();
    let tone = if proved == proofs.len() {
        Tone::Good
    } else {
        Tone::Bad
    };
    let each = format!("{proved} of {} changes are proved", proofs.len());
    let each = paint.text(tone, &each);
    let mut text = format!("{each}, by {} passes\n", passes.len());
    for proof in proofs {
        text += &proof
            .failure()
            .map_or_else(String::new, |line| plain(&line) + "\n");
    }
    text
}
