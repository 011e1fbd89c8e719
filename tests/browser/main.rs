//! Tests the pages in headless Chromium, if it is installed.
//!
//! `CHROME` names the program. Without it, the usual names are tried. Without a browser, the tests
//! are reported as ignored. The harness of the standard library cannot do this.
//! ignored and say so, which the harness of the standard library cannot.

mod outline;
mod pair;
mod reports;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

fn browser() -> Option<PathBuf> {
    let named = env::var_os("CHROME").map(PathBuf::from);
    let folders: Vec<PathBuf> = env::split_paths(&env::var_os("PATH")?).collect();
    let found = folders
        .iter()
        .flat_map(|folder| NAMES.map(|name| folder.join(name)));
    named
        .into_iter()
        .chain(found)
        .find(|program| program.is_file())
}

const FRAME: &str = r#"<html><body><script>
addEventListener("message", ({ data }) => {
  document.body.textContent = Object.entries(data).map(([key, value]) => `[${key}=${value}]`).join("");
});
</script><iframe src="page.htmlADDRESS" style="border: 0; width: WIDTHpx; height: 900px"></iframe></body></html>"#;

/// The name of a test, and its function on a browser.
type Look = (&'static str, fn(&Path));

/// The window and the address of a page.
#[derive(Clone, Copy)]
struct How<'h> {
    width: usize,
    dark: bool,
    /// The fragment of the address, such as `#site=3`.
    address: &'h str,
}

/// The report that a page wrote, as `[key=value]...`.
struct SiteRecord(String);

impl SiteRecord {
    fn text(&self, key: &str) -> &str {
        let rest = self
            .0
            .split(&format!("[{key}="))
            .nth(1)
            .and_then(|rest| rest.split(']').next());
        rest.unwrap_or_else(|| panic!("{key}? {}", self.0))
    }

    fn count(&self, key: &str) -> usize {
        self.text(key).parse().unwrap()
    }
}

/// Writes a page into a folder, with a script that reports its state.
fn write(folder: &Path, page: &str, probe: &str) {
    assert!(
        !page.contains("http://") && !page.contains("https://"),
        "the page links to the outside"
    );
    fs::write(folder.join("page.html"), page.to_owned() + probe).unwrap();
}

/// Opens the page in a folder, and returns its report.
fn look(browser: &Path, folder: &Path, how: How) -> SiteRecord {
    let How {
        width,
        dark,
        address,
    } = how;
    let frame = folder.join("frame.html");
    fs::write(
        &frame,
        FRAME
            .replace("WIDTH", &width.to_string())
            .replace("ADDRESS", address),
    )
    .unwrap();
    let scheme = if dark { 0 } else { 1 };
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ])
        .args([
            "--enable-logging=stderr",
            "--virtual-time-budget=5000",
            "--window-size=1300,1000",
        ])
        .arg(format!(
            "--user-data-dir={}",
            folder.join("profile").display()
        ))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg("--dump-dom")
        .arg(format!("file://{}", frame.display()))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let console: Vec<&str> = errors
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    assert!(console.is_empty(), "{console:?}");
    SiteRecord(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn main() -> ExitCode {
    let browser = browser();
    let trial = |(name, look): Look| {
        let program = browser.clone();
        let test = move || {
            program.iter().for_each(|program| look(program));
            Ok(())
        };
        let skipped = "skipped: no Chromium was found, CHROME=program names one";
        let kind = if browser.is_none() { skipped } else { "" };
        Trial::test(name, test)
            .with_kind(kind)
            .with_ignored_flag(browser.is_none())
    };
    let trials = reports::TRIALS
        .iter()
        .chain(outline::TRIALS)
        .chain(pair::TRIALS)
        .copied()
        .map(trial)
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
