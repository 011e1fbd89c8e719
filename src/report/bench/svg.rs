//! Charts as SVG that is embedded in a page.
//!
//! Colours are CSS classes to which the page's style sheet assigns values, so that one chart suits
//! light mode, dark mode and paper. No charting library is used, because it would write fixed
//! colours.

use std::fmt::Write;

use super::data::Measurement;
use crate::report::class::Class;
use crate::report::document::escape;
use crate::report::format::{bytes, time};

/// The width of every chart, in SVG units, which the page scales.
const WIDTH: f64 = 480.0;
/// The height of a row of a bar chart, including its name.
const ROW: f64 = 42.0;
/// The number of colours for variants in the style sheet.
const COLOURS: usize = 6;

/// The CSS class of the colour of a variant.
pub(super) fn colour(index: usize) -> String {
    format!("v{}", index % COLOURS)
}

/// The CSS class of the colour of a class of operators.
pub(super) fn class_colour(class: Class) -> &'static str {
    match class {
        Class::Normalizer => "c-normalizer",
        Class::Product => "c-product",
        Class::Movement => "c-movement",
        Class::Other => "c-other",
    }
}

fn chart(height: f64, title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{title}\">\
         <title>{title}</title>{body}</svg>\n"
    )
}

/// Draws a bar for each median, with a line for its interval. Each variant comes with its index
/// among all variants, including those that did not run, so that it keeps its colour.
pub(super) fn latency(ran: &[(usize, &str, &Measurement)]) -> String {
    let longest = ran
        .iter()
        .map(|(.., m)| m.latency.median.high)
        .fold(f64::MIN_POSITIVE, f64::max);
    let mut body = String::new();
    for (row, (index, name, measurement)) in ran.iter().enumerate() {
        let (top, interval) = (row as f64 * ROW, measurement.latency.median);
        let [low, end, high] = [interval.low, interval.value, interval.high]
            .map(|seconds| seconds / longest * (WIDTH - 4.0));
        let middle = top + 28.0;
        let label = time(interval.value);
        // Writing to a string does not fail.
        let _ = write!(
            body,
            "<text x=\"0\" y=\"{:.1}\">{}</text>\
             <text x=\"{WIDTH}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>\
             <rect class=\"{}\" x=\"0\" y=\"{:.1}\" width=\"{end:.1}\" height=\"16\" rx=\"2\"/>\
             <path class=\"interval\" \
             d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {:.1}v8M{high:.1} {:.1}v8\"/>",
            top + 14.0,
            escape(name),
            top + 14.0,
            colour(*index),
            top + 20.0,
            middle - 4.0,
            middle - 4.0,
        );
    }
    chart(
        ran.len() as f64 * ROW,
        "Median latency of each variant, with its 95 % interval",
        &body,
    )
}

/// Draws a bar for each run, divided into the classes of operators.
pub(super) fn shares(ran: &[(usize, &str, &Measurement)]) -> String {
    let longest = ran
        .iter()
        .map(|(.., measurement)| total(measurement))
        .fold(f64::MIN_POSITIVE, f64::max);
    let mut body = String::new();
    for (row, (_, name, measurement)) in ran.iter().enumerate() {
        let top = row as f64 * ROW;
        let label = time(total(measurement));
        let _ = write!(
            body,
            "<text x=\"0\" y=\"{0:.1}\">{1}</text>\
             <text x=\"{WIDTH}\" y=\"{0:.1}\" text-anchor=\"end\">{label}</text>",
            top + 14.0,
            escape(name),
        );
        let mut left = 0.0;
        for share in &measurement.time {
            let width = share.seconds / longest * WIDTH;
            let _ = write!(
                body,
                "<rect class=\"{}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"16\">\
                 <title>{}: {}</title></rect>",
                class_colour(share.class),
                top + 20.0,
                share.class.name(),
                time(share.seconds),
            );
            left += width;
        }
    }
    chart(
        ran.len() as f64 * ROW,
        "Time of a run by class of operators",
        &body,
    )
}

/// The sum of the seconds of all classes of operators.
fn total(measurement: &Measurement) -> f64 {
    measurement.time.iter().map(|share| share.seconds).sum()
}

/// Draws a strip for each variant with its live bytes, from the first to the last operator of its
/// run. A dot marks the peak, and a tick below the line marks each operator of a normalizer.
pub(super) fn memory(ran: &[(usize, &str, &Measurement)]) -> String {
    const STRIP: f64 = 92.0;
    let peak = ran
        .iter()
        .map(|(.., m)| m.memory.live_peak)
        .max()
        .unwrap_or(0)
        .max(1);
    let mut body = String::new();
    for (row, (index, name, measurement)) in ran.iter().enumerate() {
        let (memory, top) = (&measurement.memory, row as f64 * STRIP);
        let (base, step) = (top + STRIP - 14.0, WIDTH / memory.curve.len().max(1) as f64);
        let y = |bytes: u64| base - bytes as f64 / peak as f64 * (STRIP - 38.0);
        let mut line = format!("M0 {base:.1}");
        for (place, &bytes) in memory.curve.iter().enumerate() {
            let _ = write!(line, "V{:.1}H{:.1}", y(bytes), (place + 1) as f64 * step);
        }
        let at = memory
            .curve
            .iter()
            .position(|&bytes| bytes == memory.live_peak)
            .unwrap_or(0);
        let mut ticks = String::new();
        for &place in &memory.normalizer_steps {
            let _ = write!(
                ticks,
                "M{:.1} {:.1}v5",
                (place as f64 + 0.5) * step,
                base + 2.0
            );
        }
        let _ = write!(
            body,
            "<text x=\"0\" y=\"{0:.1}\">{1}</text>\
             <text x=\"{WIDTH}\" y=\"{0:.1}\" text-anchor=\"end\">{2}</text>\
             <path class=\"area {3}\" d=\"{line}V{base:.1}Z\"/>\
             <path class=\"axis\" d=\"M0 {base:.1}H{WIDTH}\"/><path class=\"tick\" d=\"{ticks}\"/>\
             <circle class=\"peak\" cx=\"{4:.1}\" cy=\"{5:.1}\" r=\"3\"/>",
            top + 14.0,
            escape(name),
            bytes(memory.live_peak),
            colour(*index),
            (at as f64 + 0.5) * step,
            y(memory.live_peak),
        );
    }
    chart(
        ran.len() as f64 * STRIP,
        "Live bytes of each variant along the order of the graph",
        &body,
    )
}
