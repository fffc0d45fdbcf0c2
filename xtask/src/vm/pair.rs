//! Three guests on switches of their own: two nodes and a client, which measures Viaduct beside the
//! reference plugins.
//!
//! Each guest has one network card for control and one for each system
//! (`tests/src/bin/bench/pair`). The nodes execute the client's commands. The client writes the
//! report and prints it to its terminal.

use std::fs;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::guest::{self, Card, Guest};
use super::prepare;
use super::switch::Switch;
use crate::{bench, project};

/// The machines, in the order of their numbers, from 1.
const MACHINES: [&str; 3] = ["node A", "node B", "client"];

/// Network cards of each: one for control, four for systems.
const CARDS: usize = 5;

/// Prefix of a line of a report file, before the file's name.
const HANDED: &str = "file ";

/// The files of a report.
const FILES: [&str; 3] = ["report.md", "report.html", "report.json"];

/// Memory of each guest in MiB.
const MEMORY: u32 = 1536;

/// Boots three guests with `kernel`, runs the benchmarks with the arguments `words` on the client,
/// and writes the report to `target/bench`.
pub(crate) fn measure(kernel: &str, limit: Duration, words: &[String]) -> Result<()> {
    let (kernels, accelerator) = prepare(&[kernel.to_owned()])?;
    bench::build()?;
    let folder = guest::folder()?;
    let switches = (0..CARDS)
        .map(|number| Switch::start(&folder.join(format!("switch-{number}"))))
        .collect::<Result<Vec<_>>>()?;
    let machine = |number: usize| Guest {
        cpus: 1,
        memory: MEMORY,
        cards: cards(&switches, number),
        ..Guest::alone(&kernels[0], accelerator, limit)
    };
    let patience = accelerator.patience();
    let scripts = [
        serving(patience),
        serving(patience),
        asking(patience, words),
    ];
    let lines = run((1..).map(machine).zip(scripts))?;
    let report = gather(&lines);
    fs::remove_dir_all(folder)?;
    let report = report?;
    let target = project::target().join("bench");
    fs::create_dir_all(&target)?;
    for (name, text) in FILES.iter().zip(report) {
        fs::write(target.join(name), text)?;
    }
    eprintln!("{}", target.join("report.html").display());
    Ok(())
}

/// Runs all guests until the client ends, and returns the client's lines.
fn run<'a>(guests: impl Iterator<Item = (Guest<'a>, String)>) -> Result<Vec<String>> {
    let (sender, ends) = channel();
    thread::scope(|scope| {
        let mut count = 0;
        for (name, (guest, script)) in MACHINES.iter().zip(guests) {
            let sender = sender.clone();
            count += 1;
            scope.spawn(move || {
                let mut lines = Vec::new();
                let ended = guest.run(&script, |line| {
                    if !line.starts_with(HANDED) {
                        println!("{name:>6} │ {line}");
                    }
                    lines.push(line.to_owned());
                });
                // The receiver may have been dropped after a failure.
                let _ = sender.send((*name, ended.map(|status| (status, lines))));
            });
        }
        wait(&ends, count)
    })
}

type End = (&'static str, Result<(i32, Vec<String>)>);

/// Waits for all guests. Returns the client's lines, or the reason of the first failure.
fn wait(ends: &Receiver<End>, count: usize) -> Result<Vec<String>> {
    let mut client = Vec::new();
    for (name, ended) in ends.iter().take(count) {
        let (status, lines) = ended.with_context(|| name)?;
        ensure!(status == 0, "{name} has ended with {status}");
        if Some(&name) == MACHINES.last() {
            client = lines;
        }
    }
    Ok(client)
}

fn cards(switches: &[Switch], machine: usize) -> Vec<Card> {
    let card = |(number, switch): (usize, &Switch)| Card {
        switch: switch.socket.clone(),
        mac: format!("52:54:00:56:{number:02x}:{machine:02x}"),
    };
    switches.iter().enumerate().map(card).collect()
}

fn bench_with(patience: u32, words: &str) -> String {
    let program = bench::program();
    format!(
        "export VIADUCT_DIST='{}' VIADUCT_TEST_PATIENCE={patience}\nmodprobe -a br_netfilter 2>/dev/null || :\n'{}' {words}",
        project::dist().display(),
        program.display()
    )
}

fn serving(patience: u32) -> String {
    bench_with(patience, "--serve")
}

/// Script of the client: runs the benchmarks and prints the report.
fn asking(patience: u32, words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let measure = bench_with(
        patience,
        &format!("--output /run/report {}", words.join(" ")),
    );
    let hand = FILES.map(|name| {
        let path = Path::new("/run/report").join(name);
        format!("sed 's|^|{HANDED}{name} |' {}", path.display())
    });
    format!("{measure} && {}", hand.join(" && "))
}

/// Extracts the report files from the client's lines.
fn gather(lines: &[String]) -> Result<Vec<String>> {
    let file = |name: &str| {
        let prefix = format!("{HANDED}{name} ");
        let text = lines
            .iter()
            .filter_map(|line| line.strip_prefix(&prefix))
            .collect::<Vec<_>>()
            .join("\n");
        ensure!(!text.is_empty(), "the client has not handed {name} over");
        Ok(text + "\n")
    };
    FILES.iter().map(|name| file(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_out_of_the_clients_lines() {
        let handed = |name: &str, line: &str| format!("{HANDED}{name} {line}");
        let mut lines = vec!["── pair".to_owned()];
        for name in FILES {
            lines.push(handed(name, "one"));
            lines.push(handed(name, "  two"));
        }
        assert!(gather(&lines).is_ok_and(|files| files == ["one\n  two\n"; 3]));
        assert!(
            gather(&lines[..3]).is_err(),
            "a report that is not whole is none"
        );
    }

    #[test]
    fn every_card_has_an_address_of_its_own() {
        let switch = |number: usize| Switch {
            socket: format!("/switch-{number}").into(),
        };
        let cards = cards(&[switch(0), switch(1)], 3);
        let macs: Vec<_> = cards.iter().map(|card| card.mac.as_str()).collect();
        assert_eq!(macs, ["52:54:00:56:00:03", "52:54:00:56:01:03"]);
    }
}
