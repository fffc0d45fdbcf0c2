//! Publishes a report in the README: the table of goals, between two marks, and a picture beside
//! it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::{Chapter, Report, markdown, plot};
use crate::goals::GoalResult;
use crate::row::system;
use crate::statistics::Summary;

const START: &str = "<!-- bench -->\n";
const END: &str = "<!-- /bench -->\n";
/// The family whose chart is shown: connections per second by the number of hostports.
const SHOWN: &str = "connect";

const HEADER: &str = "
| Measurement | Reference | Viaduct | Ratio (quartiles) | Goal | Plain kernel | Beside kube-proxy | Beside Docker |
|---|---|---|---|---|---|---|---|
";

/// Explanation of the columns, below the name of the reference.
const LEGEND: &str = "\
* **Ratio:** Viaduct / reference, both measured in the same round.
* **Goal:** what Viaduct holds itself to for the ratio.
* **Plain kernel:** the ratio of a bridge and a router that only forward: no translation, no
  connection tracking, no checks, no counters. For ADD: of one process start and the netlink calls
  that make the link.
* **Beside kube-proxy, Docker:** the ratio with the rules of that software on both nodes: kube-proxy
  1.20.2 with ten services, Docker 20.10 with one container.
* **UDP packets** have 18 bytes of payload where no size is stated. **In fragments:** three of them, at
  an MTU of 1,500 bytes.
* **Above a bare veth pair:** the cost of a packet over a veth pair alone, measured in the same
  round, is subtracted from both.
";

/// The list of installed packages of Debian and its relatives. Debian builds the reference plugins
/// without a version, so `bridge --version` does not say it.
const DPKG_STATUS: &str = "/var/lib/dpkg/status";
/// The package of the reference plugins, 1.1.1+ds1-3 in Debian 12; `cargo xtask setup` installs it.
const PLUGINS: &str = "containernetworking-plugins";

const STYLE: &str = "<style>
svg { color: #1b1f24 } text { fill: #1b1f24; font: 12px system-ui, sans-serif } .dim { fill: #68707a }
line.grid { stroke: #d5dae0 }
@media (prefers-color-scheme: dark) {
  svg { color: #e6e9ed } text { fill: #e6e9ed } .dim { fill: #98a1ab } line.grid { stroke: #39414a }
}
</style>";

/// Writes the table into the README at `readme`, and the chart to `picture`.
pub(crate) fn publish(report: &Report, readme: &Path, picture: &Path) -> Result<()> {
    let text = fs::read_to_string(readme).with_context(|| format!("{}", readme.display()))?;
    let packages = fs::read_to_string(DPKG_STATUS).unwrap_or_default();
    let new = between(&text, &table(report, upstream_version(&packages, PLUGINS)))
        .with_context(|| format!("{} has no {START}", readme.display()))?;
    fs::write(readme, new)?;
    let mut chapters = report.chapters.iter();
    let shown = chapters.find(|chapter| chapter.family.name == SHOWN);
    if let Some(drawn) = shown.and_then(|chapter| plot::pictures(chapter).into_iter().next()) {
        fs::write(picture, alone(&drawn))?;
    }
    Ok(())
}

/// Returns the text with `new` between the marks; `None` without marks.
fn between(text: &str, new: &str) -> Option<String> {
    let (before, rest) = text.split_once(START)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{START}{new}{END}{after}"))
}

/// Returns a chart as an SVG file of its own, with namespace and styles.
fn alone(picture: &str) -> String {
    let namespace = "<svg xmlns=\"http://www.w3.org/2000/svg\" ";
    let picture = picture.replacen("<svg ", namespace, 1);
    picture.replacen('>', &format!(">{STYLE}"), 1)
}

/// Returns the upstream version of an installed package, `1.1.1` of `1.1.1+ds1-3+b5`.
fn upstream_version<'a>(packages: &'a str, name: &str) -> Option<&'a str> {
    let version = packages
        .split("\n\n")
        .find(|package| {
            package
                .lines()
                .any(|line| line.strip_prefix("Package: ") == Some(name))
        })?
        .lines()
        .find_map(|line| line.strip_prefix("Version: "))?;
    let (_epoch, version) = version.split_once(':').unwrap_or(("", version));
    version.split(['+', '-', '~']).next()
}

/// Renders the table of goals, with a legend. `version` is that of the reference plugins, if known.
fn table(report: &Report, version: Option<&str>) -> String {
    let mut text = String::from(HEADER);
    for chapter in &report.chapters {
        for result in chapter.goal_results() {
            text.push_str(&line(chapter, &result).unwrap_or_default());
        }
    }
    let version = version
        .map(|version| format!(" {version}"))
        .unwrap_or_default();
    let _ = write!(
        text,
        "\nMedians of {}.\n\n\
         * **Reference:** the reference CNI plugins{version}, `bridge` with `host-local` and then `portmap`,\n  \
         with their rules in nftables (nft) or in the kernel's old tables (legacy).\n{LEGEND}",
        report.circumstances()
    );
    text
}

fn line(chapter: &Chapter, result: &GoalResult) -> Option<String> {
    let (subject, other) = (result.goal.subject, result.goal.other);
    let median = |system| {
        let row = chapter.row(subject, system)?;
        let number = super::number(Summary::of(&row.samples)?.median);
        Some(format!("{number} {}", row.unit))
    };
    let Summary {
        low,
        median: middle,
        high,
    } = result.ratio;
    let [low, middle, high] = [low, middle, high].map(markdown::two);
    let rules = other.strip_prefix("reference, ").unwrap_or(other);
    Some(format!(
        "| {}: {subject} | {} ({rules}) | {} | **{middle}** ({low}–{high}) | {} | {} | {} |\n",
        chapter.family.title,
        median(other)?,
        median(system::VIADUCT)?,
        goal(result),
        markdown::plain(result),
        markdown::beside(result).join(" | ")
    ))
}

/// Formats the bound, marked if it was missed.
fn goal(result: &GoalResult) -> String {
    let bound = markdown::bound(result);
    if result.is_met() {
        bound
    } else {
        format!("**missed**, {bound}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::FAMILIES;
    use crate::row::Row;

    #[test]
    fn only_the_text_between_the_marks_is_replaced() {
        let text = format!("before\n{START}old\n{END}after\n");
        let new = format!("before\n{START}new\n{END}after\n");
        assert_eq!(between(&text, "new\n"), Some(new));
        assert_eq!(between("no marks", "new\n"), None);
    }

    #[test]
    fn the_version_of_the_reference_plugins_is_that_of_the_installed_package() {
        let packages = "Package: iproute2\nVersion: 6.1.0-3\n\n\
            Package: containernetworking-plugins\nStatus: install ok installed\n\
            Version: 1.1.1+ds1-3+b5\n\nPackage: tar\nVersion: 1:1.34+dfsg-1\n";
        assert_eq!(upstream_version(packages, PLUGINS), Some("1.1.1"));
        assert_eq!(upstream_version(packages, "tar"), Some("1.34"));
        assert_eq!(upstream_version(packages, "podman"), None);
    }

    #[test]
    fn a_published_row_names_the_rules_of_the_reference_and_a_missed_goal() {
        let row = |system, sample| Row {
            samples: vec![sample],
            ..Row::new("pod → pod, above a bare veth pair", system, "ns per packet")
        };
        let chapter = Chapter {
            family: &FAMILIES[0],
            rows: vec![row(system::VIADUCT, 292.0), row(system::NFT, 2363.0)],
        };
        let results = chapter.goal_results();
        let line = results.first().and_then(|result| line(&chapter, result));
        let goal = "| **missed**, ≤ 0.12 | – | – | – |\n";
        assert_eq!(
            line.as_deref(),
            Some(
                &*[
                    "| CPU per UDP packet: pod → pod, above a bare veth pair ",
                    "| 2,363 ns per packet (nft) | 292 ns per packet | **0.12** (0.12–0.12) ",
                    goal
                ]
                .concat()
            )
        );
    }
}
