//! The HTML report in a real browser: Chromium without a window, where there is one.
//!
//! `CHROME` names the program; otherwise the usual names are looked for. Where there is none, the tests are
//! ignored and say so, which the harness of the standard library cannot.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};
use unfold::bench::{BenchOptions, Stop, Variant, bench, machine};
use unfold::onnx::Model;
use unfold::report::{Report, ReportedSite, html};
use unfold::variants::Variants;

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

fn browser() -> Option<PathBuf> {
    let named = env::var_os("CHROME").map(PathBuf::from);
    let folders: Vec<PathBuf> = env::split_paths(&env::var_os("PATH")?).collect();
    let found = folders.iter().flat_map(|folder| NAMES.map(|name| folder.join(name)));
    named.into_iter().chain(found).find(|program| program.is_file())
}

fn report() -> Report {
    let model = Model::open("models/digits/un-dynamo.onnx").unwrap();
    let fused = unfold::fuse(&model, &Default::default()).unwrap();
    let Variants { ln_twin, floor, normalizers } = Variants::of(&model).unwrap();
    let named = [("LN twin", ln_twin), ("as exported", model), ("fused", fused.model), ("floor", floor)];
    let variants = named.map(|(name, model)| {
        let normalizers = normalizers.clone();
        Variant { name: name.into(), model, normalizers }
    });
    let options = BenchOptions { rounds: Some(10), ..BenchOptions::default() };
    let setting = bench(&variants, &options, &Stop::default(), &|_, _, _| {});
    let site = |site: &unfold::SitePlan| ReportedSite {
        name: site.name.clone(),
        kind: site.kind.name.into(),
        channels: site.channels,
        outcome: "forward".into(),
    };
    Report {
        model: "digits <un>".into(),
        version: "0".into(),
        machine: machine(),
        settings: vec![setting],
        sites: fused.plan.sites.iter().map(site).collect(),
        notes: vec![],
        differs: false,
    }
}

/// Tells the page around it what it sees of itself, once it is loaded.
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

const FRAME: &str = r#"<html><body><script>
addEventListener("message", ({ data }) => {
  document.body.textContent = Object.entries(data).map(([key, value]) => `[${key}=${value}]`).join("");
});
</script><iframe src="page.html" style="border: 0; width: WIDTHpx; height: 900px"></iframe></body></html>"#;

/// What the page tells of itself at a width, in a colour scheme: `[key=value]...`.
fn look(browser: &Path, folder: &Path, width: usize, dark: bool) -> String {
    let frame = folder.join("frame.html");
    fs::write(&frame, FRAME.replace("WIDTH", &width.to_string())).unwrap();
    let scheme = if dark { 0 } else { 1 };
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--enable-logging=stderr", "--virtual-time-budget=5000", "--window-size=1300,1000"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg("--dump-dom")
        .arg(format!("file://{}", frame.display()))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let console: Vec<&str> = errors.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(console.is_empty(), "{console:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn main() -> ExitCode {
    let browser = browser();
    let trial = |name: &str, reports: usize| {
        let program = browser.clone();
        let test = move || {
            let page = html(&vec![report(); reports]);
            program.iter().for_each(|program| reads_well(program, &page));
            Ok(())
        };
        let skipped = "skipped: no Chromium was found, CHROME=program names one";
        let kind = if browser.is_none() { skipped } else { "" };
        Trial::test(name, test).with_kind(kind).with_ignored_flag(browser.is_none())
    };
    let trials = vec![
        trial("one_report_reads_well_in_a_browser", 1),
        trial("several_reports_read_well_in_a_browser", 2),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A page at the width of a desk and of a phone, in light and dark.
fn reads_well(browser: &Path, page: &str) {
    assert!(!page.contains("http://") && !page.contains("https://"), "the page links to the outside");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("page.html"), page.to_owned() + PROBE).unwrap();
    for width in [1200, 375] {
        let looks = [true, false].map(|dark| {
            let seen = look(browser, folder.path(), width, dark);
            for fact in [
                "overflow=0",
                "requests=0",
                "hidden=0",
                "broken=0",
                &format!("width={width}"),
                &format!("dark={dark}"),
            ] {
                assert!(seen.contains(&format!("[{fact}]")), "{width} dark={dark}: {fact}? {seen}");
            }
            let value = |key: &str| {
                let rest = seen.split(&format!("[{key}=")).nth(1).and_then(|rest| rest.split(']').next());
                rest.unwrap_or_default().to_owned()
            };
            let count = |key: &str| value(key).parse::<usize>().unwrap();
            assert!(count("charts") > 0 && count("tables") > 0, "{seen}");
            // What a phone has no room for scrolls inside the page, which itself does not.
            assert_eq!(count("scrolling") > 0, width == 375, "{seen}");
            assert_ne!(value("background"), value("text"), "{seen}");
            (value("background"), value("text"))
        });
        assert_ne!(looks[0].0, looks[1].0, "light and dark have one background");
        assert_ne!(looks[0].1, looks[1].1, "light and dark have one text colour");
    }
}
