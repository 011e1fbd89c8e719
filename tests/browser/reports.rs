//! The report of a benchmark.

use std::path::Path;

use unfold::Baselines;
use unfold::bench::{BenchOptions, Machine, Report, ReportedSite, Stop, Variant, bench, html};
use unfold::onnx::Model;

use crate::{How, Look, look, write};

pub const TRIALS: &[Look] = &[
    ("one_report_fits_desk_and_phone", |browser| {
        assert_readable(browser, &html(&[report()]))
    }),
    ("several_reports_fit_desk_and_phone", |browser| {
        assert_readable(browser, &html(&vec![report(); 2]))
    }),
];

fn report() -> Report {
    let model = Model::open("models/digits/un-dynamo.onnx").unwrap();
    let fused = unfold::fuse(&model, &Default::default()).unwrap();
    let Baselines {
        ln_twin,
        floor,
        normalizers,
    } = Baselines::new(&model).unwrap();
    let named = [
        ("LN twin", ln_twin),
        ("as exported", model),
        ("fused", fused.model),
        ("floor", floor),
    ];
    let variants = named.map(|(name, model)| {
        let normalizers = normalizers.clone();
        Variant {
            name: name.into(),
            model,
            normalizers,
        }
    });
    let options = BenchOptions {
        rounds: Some(10),
        ..BenchOptions::default()
    };
    let setting = bench(&variants, &options, &Stop::default(), &|_, _, _| {});
    let site = |site: &unfold::plan::SitePlan| ReportedSite {
        name: site.name.clone(),
        kind: site.kind.name.into(),
        channels: site.channels,
        outcome: "forward".into(),
    };
    Report {
        model: "digits <un>".into(),
        version: "0".into(),
        machine: Machine::this(),
        settings: vec![setting],
        sites: fused.plan.sites.iter().map(site).collect(),
        notes: vec![],
        differs: false,
    }
}

/// Reports the page's own state, once it is loaded.
const PROBE: &str = r#"<script>
addEventListener("load", () => {
  const root = document.documentElement;
  const charts = [...document.querySelectorAll("svg")];
  const tables = [...document.querySelectorAll("table")];
  const words = ({ firstChild: text }) => [...text.data.matchAll(/\S+/g)].map(({ 0: word, index }) => {
    const range = new Range();
    range.setStart(text, index);
    range.setEnd(text, index + word.length);
    return range;
  });
  parent.postMessage({
    width: innerWidth,
    overflow: root.scrollWidth - innerWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    background: getComputedStyle(document.body).backgroundColor,
    text: getComputedStyle(document.body).color,
    charts: charts.filter(chart => chart.getBoundingClientRect().width > 100).length,
    hidden: charts.filter(chart => chart.getBoundingClientRect().right > innerWidth).length,
    tables: tables.length,
    scrolling: tables.filter(table => table.parentElement.scrollWidth > table.parentElement.clientWidth).length,
    broken: [...document.querySelectorAll("th")].flatMap(words).filter(word => word.getClientRects().length > 1).length,
    requests: performance.getEntriesByType("resource").length,
  }, "*");
});
</script>"#;

/// Asserts that a page is readable at the widths of a desktop and of a phone, in light and dark
/// mode.
fn assert_readable(browser: &Path, page: &str) {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), page, PROBE);
    for width in [1200, 375] {
        let looks = [true, false].map(|dark| {
            let seen = look(
                browser,
                folder.path(),
                How {
                    width,
                    dark,
                    address: "",
                },
            );
            for fact in [
                "overflow=0",
                "requests=0",
                "hidden=0",
                "broken=0",
                &format!("width={width}"),
                &format!("dark={dark}"),
            ] {
                assert!(
                    seen.0.contains(&format!("[{fact}]")),
                    "{width} dark={dark}: {fact}? {}",
                    seen.0
                );
            }
            assert!(
                seen.count("charts") > 0 && seen.count("tables") > 0,
                "{}",
                seen.0
            );
            // On a phone, wide parts scroll inside the page, but the page itself does not.
            assert_eq!(seen.count("scrolling") > 0, width == 375, "{}", seen.0);
            assert_ne!(seen.text("background"), seen.text("text"), "{}", seen.0);
            (
                seen.text("background").to_owned(),
                seen.text("text").to_owned(),
            )
        });
        assert_ne!(looks[0].0, looks[1].0, "light and dark have one background");
        assert_ne!(
            looks[0].1, looks[1].1,
            "light and dark have one text colour"
        );
    }
}
