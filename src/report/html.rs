//! Reports as one page that needs nothing else: no script, no font, no request.

use std::fmt::Write;

use super::data::{Class, Measurement, Report, Setting};
use super::format::{bytes, failures, how, maybe_bytes, memory_sentence, ratio, references, time, verdicts};
use super::overview::ratios;
use super::svg::{self, class_colour, escape};

const MEMORY: &str = "Live memory over a run; a dot at the peak, ticks below at the operators of normalizers";

const STYLE: &str = include_str!("page.css");

/// One report, or several after a table of their ratios, as a page of HTML, readable in light and dark, on
/// a phone and on paper.
pub fn html(reports: &[Report]) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut out, reports);
    out
}

fn write(out: &mut String, reports: &[Report]) -> std::fmt::Result {
    let title = match reports {
        [report] => escape(&report.model),
        _ => format!("{} benchmarks", reports.len()),
    };
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title} - unfold bench</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    )?;
    if reports.len() > 1 {
        writeln!(out, "<h1>{title}</h1>\n<p>Ratios of latencies, with their 95 % intervals.</p>")?;
        let (heads, rows) = ratios(reports);
        table(out, "", &heads.iter().map(String::as_str).collect::<Vec<_>>(), rows.into_iter())?;
    }
    for one in reports {
        writeln!(out, "<section>")?;
        report(out, one)?;
        writeln!(out, "</section>")?;
    }
    writeln!(out, "</body>\n</html>")
}

fn report(out: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(out, "<h1>{}</h1>", escape(&report.model))?;
    let machine = &report.machine;
    let (processor, system) = (escape(&machine.processor), escape(&machine.system));
    let (version, cores) = (escape(&report.version), machine.cores);
    writeln!(out, "<p class=\"faint\">unfold {version}, tract, {processor}, {cores} cores, {system}</p>")?;
    report.notes.iter().try_for_each(|note| writeln!(out, "<p>{}</p>", escape(note)))?;
    report.settings.iter().try_for_each(|one| setting(out, one))?;
    if report.sites.is_empty() {
        return Ok(());
    }
    let rows = report.sites.iter().map(|site| {
        vec![site.name.clone(), site.kind.clone(), site.channels.to_string(), site.outcome.clone()]
    });
    writeln!(out, "<h2>Normalizers</h2>")?;
    table(out, "text", &["site", "kind", "channels", "what happened"], rows)
}

fn setting(out: &mut String, setting: &Setting) -> std::fmt::Result {
    writeln!(out, "<h2>{}</h2>", escape(&how(setting)))?;
    let ran: Vec<(usize, &str, &Measurement)> = setting
        .variants
        .iter()
        .enumerate()
        .filter_map(|(index, variant)| Some((index, variant.name.as_str(), variant.measurement()?)))
        .collect();
    for failure in failures(setting) {
        writeln!(out, "<p class=\"failed\">{}</p>", escape(&failure))?;
    }
    if ran.is_empty() {
        return Ok(());
    }
    let verdicts: Vec<String> = verdicts(setting).iter().map(|verdict| escape(verdict)).collect();
    if !verdicts.is_empty() {
        writeln!(out, "<p>{}.</p>", verdicts.join("; "))?;
    }
    let classes =
        legend(Class::ALL.into_iter().map(|class| (class_colour(class).into(), class.name().into())));
    let figure = |caption: &str, chart: String, legend: &str| {
        format!("<figure><figcaption>{caption}</figcaption>{chart}{legend}</figure>\n")
    };
    writeln!(
        out,
        "<div class=\"charts\">\n{}{}{}</div>",
        figure("Latency, median with 95 % interval", svg::latency(&ran), ""),
        figure("Time by class of operators", svg::shares(&ran), &classes),
        figure(MEMORY, svg::memory(&ran), ""),
    )?;
    latency(out, setting, &ran)?;
    memory(out, &ran)?;
    match memory_sentence(setting) {
        Some(sentence) => writeln!(out, "<p>{}</p>", escape(&sentence)),
        None => Ok(()),
    }
}

fn legend(entries: impl Iterator<Item = (String, String)>) -> String {
    let entry = |(class, name): (String, String)| {
        let name = escape(&name);
        format!(
            "<li><svg viewBox=\"0 0 1 1\" aria-hidden=\"true\">\
             <rect class=\"{class}\" width=\"1\" height=\"1\"/></svg>{name}</li>"
        )
    };
    format!("<ul class=\"legend\">{}</ul>", entries.map(entry).collect::<String>())
}

fn latency(out: &mut String, setting: &Setting, ran: &[(usize, &str, &Measurement)]) -> std::fmt::Result {
    let references: Vec<String> = references(setting).iter().map(|name| format!("÷ {name}")).collect();
    let mut heads = vec!["variant", "median", "95 % interval", "p95", "samples/s"];
    heads.extend(references.iter().map(String::as_str));
    let rows = ran.iter().map(|(_, name, measurement)| {
        let latency = &measurement.latency;
        let interval = format!("{} to {}", time(latency.median.low), time(latency.median.high));
        let rate = format!("{:.1}", latency.throughput);
        let mut row = vec![(*name).to_owned(), time(latency.median.value), interval, time(latency.p95), rate];
        row.extend(measurement.ratios.iter().map(ratio));
        row
    });
    writeln!(out, "<h3>Latency</h3>")?;
    table(out, "", &heads, rows)
}

fn memory(out: &mut String, ran: &[(usize, &str, &Measurement)]) -> std::fmt::Result {
    let heads = [
        "variant",
        "live peak",
        "at normalizers",
        "heap peak",
        "allocated",
        "resident peak",
        "file",
        "weights",
    ];
    let rows = ran.iter().map(|(_, name, measurement)| {
        let memory = &measurement.memory;
        vec![
            (*name).to_owned(),
            bytes(memory.live_peak),
            maybe_bytes(memory.live_at_normalizers),
            maybe_bytes(memory.heap_peak),
            maybe_bytes(memory.allocated),
            maybe_bytes(memory.resident_peak),
            bytes(measurement.file_bytes),
            bytes(measurement.weight_bytes),
        ]
    });
    writeln!(out, "<h3>Memory</h3>")?;
    table(out, "", &heads, rows)?;
    writeln!(
        out,
        "<p class=\"faint\">Live peak: values held at one time, by the order of the graph. Heap peak and \
         allocated: what one run asks the allocator for. Resident peak: a process that runs only this \
         variant, with its weights.</p>"
    )
}

fn table(
    out: &mut String,
    class: &str,
    heads: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
) -> std::fmt::Result {
    let heads: String = heads.iter().map(|head| format!("<th scope=\"col\">{}</th>", escape(head))).collect();
    writeln!(out, "<div class=\"scroll\"><table class=\"{class}\"><thead><tr>{heads}</tr></thead><tbody>")?;
    for row in rows {
        let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        writeln!(out, "<tr>{cells}</tr>")?;
    }
    writeln!(out, "</tbody></table></div>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::report;

    #[test]
    fn the_page_asks_for_nothing_and_holds_no_script() {
        let page = html(&[report()]);
        for word in ["http:", "https:", "//", "<script", "<link", "@import", "url(", "src="] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn several_reports_begin_with_a_table_of_their_ratios() {
        let page = html(&[report(), report()]);
        assert!(page.contains("<h1>2 benchmarks</h1>"));
        assert_eq!(page.matches("<h1>vit &lt;small&gt;.onnx</h1>").count(), 2);
        let overview = page.split("</table>").next().unwrap();
        let row = ["vit &lt;small&gt;.onnx", "batch=8", "1.01 [0.99, 1.03]", "0.80 [0.79, 0.81]", "-", "-"];
        let cells: String = row.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        assert_eq!(overview.matches(&cells).count(), 2, "{overview}");
    }

    #[test]
    fn every_tag_is_closed_and_names_are_text() {
        let page = html(&[report()]);
        assert!(page.contains("<h1>vit &lt;small&gt;.onnx</h1>"));
        for tag in ["svg", "table", "figure", "tr", "td", "text", "path", "p", "ul", "li", "div", "title"] {
            let (with, without) = (format!("<{tag} "), format!("<{tag}>"));
            let open = page.matches(&with).count() + page.matches(&without).count();
            let closed = page.matches(&format!("</{tag}>")).count();
            let inside = page.split(&with).skip(1).filter_map(|rest| rest.split('>').next());
            let alone = inside.filter(|inside| inside.ends_with('/')).count();
            assert_eq!(open, closed + alone, "{tag}");
        }
    }
}
