//! The guides of `docs/guides`, executed from their own text.
//!
//! Blocks of commands (`sh`) run in their order on a fresh node, also those in comments, which
//! prepare a symptom or check what the reader sees. A block of `text` behind them has lines that
//! their output contains, where `…` stands for any text.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use e2e::{Sandbox, Systemd, skipped};

/// Directory of the packages in the container.
const PACKAGES: &str = "/srv/viaduct/target/package";
/// Line of a guide that names the programs that it needs beside those of all guides.
const NEEDS: &str = "<!-- needs: ";
/// A guide whose commands need a cluster: its tests are those of `kube.rs`.
const NEEDS_A_CLUSTER: &str = "kubernetes.md";

/// A block of commands.
#[derive(Debug, Default, PartialEq, Eq)]
struct Block {
    /// Number of its first line.
    line: usize,
    commands: String,
    /// Lines that the output contains.
    expected: Vec<String>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guides")
}

/// Returns the blocks of a guide. Expected lines belong to the commands before them.
fn blocks(guide: &str) -> Result<Vec<Block>> {
    let mut found: Vec<Block> = Vec::new();
    let mut lines = guide.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else {
            continue;
        };
        let mut content = String::new();
        loop {
            let (_, line) = lines.next().context("a block without an end")?;
            if line == "```" {
                break;
            }
            content += line;
            content.push('\n');
        }
        match kind {
            "sh" => found.push(Block {
                line: number + 2,
                commands: content,
                expected: Vec::new(),
            }),
            "text" => {
                let last = found.last_mut().context("an output without commands")?;
                last.expected.extend(content.lines().map(str::to_owned));
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Returns the expected lines that are not in the output in this order. White space counts as one
/// space.
fn missing<'a>(output: &str, expected: &'a [String]) -> Vec<&'a str> {
    let joined = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let output: Vec<String> = output.lines().map(joined).collect();
    let mut rest = output.iter();
    expected
        .iter()
        .filter(|wanted| {
            let wanted = joined(wanted);
            let parts: Vec<&str> = wanted.split('…').map(str::trim).collect();
            !rest.any(|line| has_parts(line, &parts))
        })
        .map(String::as_str)
        .collect()
}

fn has_parts(line: &str, parts: &[&str]) -> bool {
    let mut rest = line;
    parts.iter().all(|part| match rest.split_once(part) {
        Some((_, behind)) => {
            rest = behind;
            true
        }
        None => false,
    })
}

#[test]
fn blocks_of_a_guide_have_their_lines_and_expected_outputs() -> Result<()> {
    let text = "a\n```sh\none\ntwo\n```\n```\nno commands\n```\n<!--\n```sh\nthree\n```\n-->\n```text\n3 … 4\n```\n";
    let block = |line, commands: &str, expected: &[&str]| Block {
        line,
        commands: commands.to_owned(),
        expected: expected.iter().map(ToString::to_string).collect(),
    };
    let expected = [
        block(3, "one\ntwo\n", &[]),
        block(11, "three\n", &["3 … 4"]),
    ];
    assert_eq!(blocks(text)?, expected);
    assert!(blocks("```sh\none\n").is_err());
    assert!(blocks("```text\none\n```\n").is_err());
    Ok(())
}

#[test]
fn expected_lines_of_a_guide_are_in_the_output_in_their_order() {
    let output = "Health     good\nPods  2  of 10\n";
    let missing = |lines: &[&str]| {
        let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
        missing(output, &lines).len()
    };
    assert_eq!(missing(&["Health good", "Pods … 10"]), 0);
    assert_eq!(missing(&["Pods … 10", "Health good"]), 1);
    assert_eq!(missing(&["Health … bad", "10 … 2"]), 2);
}

/// Executes a guide on a node without Viaduct.
fn execute(name: &str) -> Result<()> {
    let text = fs::read_to_string(folder().join(format!("{name}.md")))?;
    let blocks = blocks(&text)?;
    ensure!(!blocks.is_empty(), "{name} has no commands");
    let sandbox = Sandbox::new()?;
    let Some(systemd) = Systemd::boot(&sandbox.node)? else {
        return Ok(());
    };
    let needs = text
        .lines()
        .filter_map(|line| line.strip_prefix(NEEDS))
        .flat_map(|line| line.trim_end_matches("-->").split_whitespace());
    for tool in ["dpkg-deb", "curl", "python3"].into_iter().chain(needs) {
        if systemd.script(&format!("command -v {tool}")).is_err() {
            skipped(&format!("{tool} is not installed"));
            return Ok(());
        }
    }
    // Images of containers forbid packages to start services.
    systemd.script("rm -f /usr/sbin/policy-rc.d")?;
    for block in blocks {
        let Block { line, commands, .. } = &block;
        let place = || format!("{name}.md, line {line}:\n{commands}");
        let output = systemd
            .script(&format!("exec 2>&1\nset -eu\ncd {PACKAGES}\n{commands}"))
            .with_context(place)
            .with_context(|| systemd.console())?;
        let missing = missing(&output, &block.expected);
        ensure!(
            missing.is_empty(),
            "{}not printed: {missing:#?}\n{output}",
            place()
        );
    }
    Ok(())
}

/// Declares a test for each guide.
macro_rules! guides {
    ($($test:ident: $name:literal,)+) => {
        $(
            #[test]
            fn $test() -> Result<()> {
                execute($name)
            }
        )+

        #[test]
        fn each_guide_is_executed_by_a_test_that_it_names() -> Result<()> {
            let mut tested = vec![$(format!("{}.md", $name)),+];
            tested.sort();
            let files = fs::read_dir(folder())?;
            let names = files.map(|file| Ok(file?.file_name().to_string_lossy().into_owned()));
            let mut guides = names.collect::<Result<Vec<_>>>()?;
            guides.retain(|name| name != NEEDS_A_CLUSTER);
            guides.sort();
            assert_eq!(tested, guides);
            for (test, name) in [$((stringify!($test), $name)),+] {
                let text = fs::read_to_string(folder().join(format!("{name}.md")))?;
                ensure!(text.contains(test), "{name}.md does not name {test}");
            }
            Ok(())
        }
    };
}

guides! {
    the_guide_beside_docker_works_as_it_is_written: "beside-docker",
    the_guide_beside_kube_proxy_works_as_it_is_written: "beside-kube-proxy",
    the_guide_containerd_works_as_it_is_written: "containerd",
    the_guide_from_bridge_works_as_it_is_written: "from-bridge",
    the_guide_plain_cni_works_as_it_is_written: "plain-cni",
    the_guide_podman_4_works_as_it_is_written: "podman-4",
    the_guide_troubleshooting_works_as_it_is_written: "troubleshooting",
    the_guide_upgrade_works_as_it_is_written: "upgrade",
}
