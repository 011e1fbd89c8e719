//! Reports as one HTML page without a script.

use std::fmt::Write;

use super::data::{Measurement, Report, Setting};
use super::lead::lead;
use super::overview;
use super::sentences::{failures, how, machine, memory_sentence, verdicts};
use super::svg::{self, class_colour};
use super::table::{self, Cells, Column, Table};
use crate::report::class::Class;
use crate::report::document::{document, escape};

const MEMORY: &str =
    "Live memory over a run; a dot at the peak, ticks below at the operators of normalizers";

const MEASURES: &str = "Live peak: values held at one time, by the order of the graph. Heap peak and allocated: what \
     one run asks the allocator for. Resident peak: a process that runs only this variant, with its weights.";

const STYLE: &str = include_str!("bench.css");

/// Writes an HTML page with one report, or with several reports after a table of their ratios. The
/// page suits light mode, dark mode, phones and paper.
pub fn html(reports: &[Report]) -> String {
    let title = match reports {
        [report] => report.model.clone(),
        _ => format!("{} benchmarks", reports.len()),
    };
    let mut body = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut body, &title, reports);
    document(&format!("{title} - unfold bench"), STYLE, &body)
}

fn write(out: &mut String, title: &str, reports: &[Report]) -> std::fmt::Result {
    if reports.len() > 1 {
        writeln!(out, "<h1>{title}</h1>")?;
        [overview::ratios(reports), overview::memory(reports)]
            .iter()
            .try_for_each(|one| table(out, "h3", one))?;
    }
    for one in reports {
        writeln!(out, "<section>")?;
        report(out, one)?;
        writeln!(out, "</section>")?;
    }
    Ok(())
}

fn report(out: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(out, "<h1>{}</h1>", escape(&report.model))?;
    writeln!(out, "<p class=\"faint\">{}</p>", escape(&machine(report)))?;
    report
        .notes
        .iter()
        .try_for_each(|note| writeln!(out, "<p>{}</p>", escape(note)))?;
    report
        .settings
        .iter()
        .try_for_each(|one| setting(out, one))?;
    if report.sites.is_empty() {
        Ok(())
    } else {
        table(out, "h2", &table::sites(report))
    }
}

fn setting(out: &mut String, setting: &Setting) -> std::fmt::Result {
    writeln!(out, "<h2>{}</h2>", escape(&how(setting)))?;
    let ran: Vec<(usize, &str, &Measurement)> = setting.ran().collect();
    for failure in failures(setting) {
        writeln!(out, "<p class=\"failed\">{}</p>", escape(&failure))?;
    }
    if ran.is_empty() {
        return Ok(());
    }
    if let Some(sentence) = lead(setting) {
        writeln!(out, "<p><strong>{}</strong></p>", escape(&sentence))?;
    }
    let verdicts: Vec<String> = verdicts(setting)
        .iter()
        .map(|verdict| escape(verdict))
        .collect();
    if !verdicts.is_empty() {
        writeln!(out, "<p>{}.</p>", verdicts.join("; "))?;
    }
    let classes = legend();
    writeln!(
        out,
        "<div class=\"charts\">\n{}{}{}</div>",
        figure(
            "Latency, median with 95 % interval",
            &svg::latency(&ran),
            ""
        ),
        figure("Time by class of operators", &svg::shares(&ran), &classes),
        figure(MEMORY, &svg::memory(&ran), ""),
    )?;
    [table::latency(setting), table::memory(setting)]
        .iter()
        .try_for_each(|one| table(out, "h3", one))?;
    let sentence = memory_sentence(setting).unwrap_or_default();
    writeln!(
        out,
        "<p class=\"faint\">{MEASURES}</p>\n<p>{}</p>",
        escape(&sentence)
    )?;
    table(out, "h3", &table::shares(setting))
}

fn figure(caption: &str, chart: &str, legend: &str) -> String {
    format!("<figure><figcaption>{caption}</figcaption>{chart}{legend}</figure>\n")
}

/// The names of all classes of operators, with their colours.
fn legend() -> String {
    let entries = Class::ALL.map(|class| {
        format!(
            "<li><svg viewBox=\"0 0 1 1\" aria-hidden=\"true\">\
             <rect class=\"{}\" width=\"1\" height=\"1\"/></svg>{}</li>",
            class_colour(class),
            escape(class.name())
        )
    });
    format!("<ul class=\"legend\">{}</ul>", entries.concat())
}

/// Writes a heading, and a table with all its columns below it. The table scrolls if the page is
/// narrower.
fn table(out: &mut String, heading: &str, table: &Table) -> std::fmt::Result {
    let title = escape(table.title);
    let heads: String = table.columns.iter().map(head).collect();
    writeln!(
        out,
        "<{heading}>{title}</{heading}>\n<div class=\"scroll\" role=\"region\" aria-label=\"{title}\" tabindex=\"0\">\
         <table><thead><tr>{heads}</tr></thead><tbody>"
    )?;
    for row in &table.rows {
        let columns = table.columns.iter().zip(row);
        let cells: String = columns.map(|(column, text)| cell(column, text)).collect();
        writeln!(out, "<tr>{cells}</tr>")?;
    }
    writeln!(out, "</tbody></table></div>")
}

fn head(column: &Column) -> String {
    let class = class(column.kind);
    format!("<th scope=\"col\"{class}>{}</th>", escape(&column.head))
}

fn cell(column: &Column, text: &str) -> String {
    format!("<td{}>{}</td>", class(column.kind), escape(text))
}

/// The class attribute of cells.
fn class(kind: Cells) -> &'static str {
    match kind {
        Cells::Text => " class=\"text\"",
        Cells::Number | Cells::Detail => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::bench::testing::report;

    #[test]
    fn page_has_no_script_and_no_external_resource() {
        let page = html(&[report()]);
        for word in [
            "http:", "https:", "//", "<script", "<link", "@import", "url(", "src=",
        ] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn several_reports_begin_with_a_table_of_ratios() {
        let page = html(&[report(), report()]);
        assert!(page.contains("<h1>2 benchmarks</h1>"));
        assert_eq!(page.matches("<h1>vit &lt;small&gt;.onnx</h1>").count(), 2);
        let overview = page.split("</table>").next().unwrap();
        let texts = ["vit &lt;small&gt;.onnx", "batch=8"]
            .map(|cell| format!("<td class=\"text\">{cell}</td>"));
        let numbers =
            ["1.01 [0.99, 1.03]", "0.80 [0.79, 0.81]"].map(|cell| format!("<td>{cell}</td>"));
        // The report has no floor and no portable variant, and columns that would contain only
        // dashes are left out.
        let row = texts.concat() + &numbers.concat();
        assert_eq!(overview.matches(&row).count(), 2, "{overview}");
    }

    #[test]
    fn page_closes_every_tag_and_escapes_names() {
        let page = html(&[report()]);
        assert!(page.contains("<h1>vit &lt;small&gt;.onnx</h1>"));
        for tag in [
            "svg", "table", "figure", "tr", "td", "text", "path", "p", "ul", "li", "div", "title",
        ] {
            let (with, without) = (format!("<{tag} "), format!("<{tag}>"));
            let open = page.matches(&with).count() + page.matches(&without).count();
            let closed = page.matches(&format!("</{tag}>")).count();
            let inside = page
                .split(&with)
                .skip(1)
                .filter_map(|rest| rest.split('>').next());
            let alone = inside.filter(|inside| inside.ends_with('/')).count();
            assert_eq!(open, closed + alone, "{tag}");
        }
    }
}
