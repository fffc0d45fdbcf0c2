//! The measurement behind `cargo xtask compatibility`: each system beside each piece of software.

#![forbid(unsafe_code)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use e2e::compatibility::{Cell, Column, Order, Row, Software, System, laws, measure, page, record};

/// Measures Viaduct and the reference plugins beside other software.
#[derive(Parser)]
struct Args {
    /// Software to run, by its name [default: all]
    software: Vec<String>,
    /// File that gets the page
    #[arg(long, value_name = "FILE")]
    bless: Option<PathBuf>,
    /// Folder that gets the rules of kube-proxy and Docker; nothing is measured
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(offences) if offences.is_empty() => ExitCode::SUCCESS,
        Ok(offences) => {
            for offence in offences {
                print_line(&format!("✗ {offence}"));
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            print_line(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns the offences against the laws.
fn run(args: &Args) -> Result<Vec<String>> {
    if let Some(folder) = &args.record {
        record(folder)?;
        return Ok(Vec::new());
    }
    let mut rows = Vec::new();
    for software in chosen(&args.software)? {
        if let Some(lack) = software.lack()? {
            print_line(&format!("{} is left out: {lack}", software.name()));
            continue;
        }
        for order in Order::ALL {
            if software == Software::Plain && order == Order::After {
                continue;
            }
            for system in System::ALL.into_iter().filter(|it| it.is_available()) {
                let row = measure(software, order, system)?;
                print_row(&row);
                rows.push(row);
            }
        }
    }
    if let Some(file) = &args.bless {
        write(file, &page(&rows, &kernel()?))?;
    }
    Ok(laws(&rows))
}

/// Returns the software of these names.
fn chosen(names: &[String]) -> Result<Vec<Software>> {
    let all = Software::ALL.into_iter();
    if names.is_empty() {
        return Ok(all.collect());
    }
    let mut chosen = Vec::new();
    for name in names {
        let same = |it: &Software| it.name().eq_ignore_ascii_case(name);
        let before = chosen.len();
        chosen.extend(all.clone().filter(same));
        anyhow::ensure!(chosen.len() > before, "there is no software {name}");
    }
    Ok(chosen)
}

/// Prints what does not work in a row.
fn print_row(row: &Row) {
    let mark = if row.is_good() { '✓' } else { '✗' };
    print_line(&format!("{mark} {}", row.title()));
    for column in Column::ALL {
        for (cell, family) in row.cell(column).iter().zip(["IPv4", "IPv6"]) {
            if let Cell::Bad(reason) = cell {
                print_line(&format!("    {}, {family}: {reason}", column.name()));
            }
        }
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Returns the release of the kernel without the builder's suffix.
fn kernel() -> Result<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let number = release.trim().split('-').next().unwrap_or_default();
    Ok(number.to_owned())
}

/// Prints a line to standard output.
fn print_line(line: &str) {
    // A closed output must not stop the measurement.
    let _ = writeln!(std::io::stdout(), "{line}");
}
