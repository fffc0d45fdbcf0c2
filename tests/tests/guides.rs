//! The guides of `docs/guides`, executed from their own text.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use e2e::{Sandbox, Systemd, skipped};

/// Begin and end of a block that is executed.
const BEGIN: &str = "```sh";
const END: &str = "```";
/// Directory of the packages in the container.
const PACKAGES: &str = "/srv/viaduct/target/package";

/// Returns the guides.
fn guides() -> Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guides");
    let files = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut guides = files.collect::<Result<Vec<_>>>()?;
    guides.sort();
    Ok(guides)
}

/// Returns the blocks of commands with the numbers of their first lines.
fn blocks(guide: &str) -> Result<Vec<(usize, String)>> {
    let mut found = Vec::new();
    let mut lines = guide.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line != BEGIN {
            continue;
        }
        let mut block = String::new();
        loop {
            let (_, line) = lines.next().context("a block without an end")?;
            if line == END {
                break;
            }
            block += line;
            block.push('\n');
        }
        found.push((number + 2, block));
    }
    Ok(found)
}

#[test]
fn blocks_of_a_guide_are_found_with_their_lines() -> Result<()> {
    let text = "a\n```sh\none\ntwo\n```\n```\nno commands\n```\n```sh\nthree\n```\n";
    let expected = [(3, "one\ntwo\n"), (10, "three\n")].map(|(line, it)| (line, it.to_owned()));
    assert_eq!(blocks(text)?, expected);
    assert!(blocks("```sh\none\n").is_err());
    Ok(())
}

#[test]
fn a_guide_works_as_it_is_written_with_the_packages() -> Result<()> {
    for guide in guides()? {
        let name = guide.display().to_string();
        let blocks = blocks(&fs::read_to_string(&guide)?)?;
        ensure!(!blocks.is_empty(), "{name} has no commands");
        // Each guide begins on a node without Viaduct.
        let sandbox = Sandbox::new()?;
        let Some(systemd) = Systemd::boot(&sandbox.node)? else {
            return Ok(());
        };
        for tool in ["dpkg-deb", "curl", "python3"] {
            if systemd.script(&format!("command -v {tool}")).is_err() {
                skipped(&format!("{tool} is not installed"));
                return Ok(());
            }
        }
        // Images of containers forbid packages to start services.
        systemd.script("rm -f /usr/sbin/policy-rc.d")?;
        for (line, block) in blocks {
            systemd
                .script(&format!("set -eu\ncd {PACKAGES}\n{block}"))
                .with_context(|| format!("{name}, line {line}:\n{block}"))
                .with_context(|| systemd.console())?;
        }
    }
    Ok(())
}
