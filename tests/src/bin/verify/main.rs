//! Loads every program of the BPF object and compares what the verifier says with the committed table.
//!
//! `verify OBJECT TABLE [--bless]`, as root; `cargo xtask verify` calls it. The verifier's work is a
//! budget of a million instructions per program, and it runs out suddenly: growth is looked at while it
//! is small. Numbers of another kernel series are shown, but not judged; nor is the time for a packet, which is this
//! machine's and this hour's.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the table is what this program is for"
)]

mod claims;
mod pace;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use aya::programs::{Program, ProgramError};
use aya::{Ebpf, EbpfLoader};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

/// Growth beyond this asks for a decision: make it cheaper, or bless it.
const GROWTH_PERCENT: u64 = 10;

/// In the table, what a program does not have.
const NONE: &str = "-";

/// What the kernel says of one program.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Cost {
    /// Instructions that the verifier walked, over all paths.
    verified: u64,
    /// Bytes of machine code.
    machine_code: u64,
    /// Nanoseconds for a packet of a known flow; not of every program.
    pace: Option<u64>,
}

/// The costs of all programs, on one kernel.
#[derive(PartialEq, Eq)]
struct Table {
    kernel: String,
    costs: BTreeMap<String, Cost>,
}

fn main() -> ExitCode {
    match verify() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn verify() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (object, table, bless) = match words[..] {
        [object, table] => (object, table, false),
        [object, table, "--bless"] => (object, table, true),
        _ => bail!("usage: verify OBJECT TABLE [--bless]"),
    };
    let today = measure(Path::new(object))?;
    print!("{}", today.text());
    if bless {
        std::fs::write(table, today.text())?;
        println!("accepted");
        return Ok(());
    }
    let committed = Table::read(Path::new(table))?;
    judge(
        &committed.context("there is no table yet: accept this one with --bless")?,
        &today,
    )
}

fn judge(committed: &Table, today: &Table) -> Result<()> {
    if series(&committed.kernel) != series(&today.kernel) {
        println!("the table is of kernel {}: not compared", committed.kernel);
        return Ok(());
    }
    let changes = grown(committed, today);
    if !changes.is_empty() {
        bail!(
            "{}\nmake it cheaper, or accept it with --bless",
            changes.join("\n")
        );
    }
    Ok(())
}

fn measure(object: &Path) -> Result<Table> {
    let bytes =
        std::fs::read(object).with_context(|| format!("cannot read {}", object.display()))?;
    let bpffs = private_bpffs()?;
    let mut loaded: Ebpf = EbpfLoader::new()
        .default_map_pin_directory(bpffs.path())
        .load(&bytes)
        .context("cannot load the object")?;
    let mut costs = BTreeMap::new();
    for (name, program) in loaded.programs_mut() {
        let cost = load(program).with_context(|| format!("cannot load {name}"))?;
        costs.insert(name.to_owned(), cost);
    }
    for (name, pace) in pace::measure(&mut loaded).context("cannot measure the programs' pace")? {
        if let Some(cost) = costs.get_mut(&name) {
            cost.pace = Some(pace);
        }
    }
    for (claims, pace) in claims::measure(&mut loaded).context("cannot measure hostports")? {
        println!("a packet to one of {claims} hostports: {pace} ns");
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let kernel = release
        .trim()
        .split('-')
        .next()
        .unwrap_or_default()
        .to_owned();
    Ok(Table { kernel, costs })
}

/// A BPF file system of our own, for maps that want to be pinned. Its mount namespace ends with us.
#[expect(
    clippy::disallowed_methods,
    reason = "a single-threaded program that leaves its mount namespace for good"
)]
fn private_bpffs() -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    unshare(CloneFlags::CLONE_NEWNS).context("this needs root")?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(
        Some("bpffs"),
        folder.path(),
        Some("bpf"),
        MsFlags::empty(),
        none,
    )
    .context("cannot mount a BPF file system")?;
    Ok(folder)
}

fn load(program: &mut Program) -> Result<Cost> {
    into_kernel(program)?;
    let info = program.info()?;
    let verified = info
        .verified_instruction_count()
        .context("the kernel does not count instructions")?;
    Ok(Cost {
        verified: verified.into(),
        machine_code: info.size_jitted().into(),
        pace: None,
    })
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "a new kind of program is an error here until it is added"
)]
fn into_kernel(program: &mut Program) -> Result<(), ProgramError> {
    match program {
        Program::SchedClassifier(it) => it.load(),
        Program::CgroupSockAddr(it) => it.load(),
        Program::CgroupSock(it) => it.load(),
        Program::CgroupSkb(it) => it.load(),
        Program::SockOps(it) => it.load(),
        Program::Xdp(it) => it.load(),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

fn grown(before: &Table, after: &Table) -> Vec<String> {
    let mut changes = Vec::new();
    for (name, cost) in &after.costs {
        match before.costs.get(name) {
            Some(old) if cost.verified * 100 > old.verified * (100 + GROWTH_PERCENT) => changes
                .push(format!(
                    "{name}: {} instructions, and they were {}",
                    cost.verified, old.verified
                )),
            Some(_) => {}
            None => changes.push(format!("{name}: is new")),
        }
    }
    let gone = before
        .costs
        .keys()
        .filter(|name| !after.costs.contains_key(*name));
    changes.extend(gone.map(|name| format!("{name}: is gone")));
    changes
}

/// The part of a kernel's release within which the verifier stays the same.
fn series(kernel: &str) -> &str {
    kernel
        .match_indices('.')
        .nth(1)
        .map_or(kernel, |(at, _)| &kernel[..at])
}

impl Table {
    const HEAD: &str =
        "# What the verifier makes of the BPF object; `cargo xtask verify --bless` writes it.\n";
    const KERNEL: &str = "# kernel ";

    fn text(&self) -> String {
        let mut text = format!("{}{}{}\n", Self::HEAD, Self::KERNEL, self.kernel);
        let _ = writeln!(
            text,
            "{:<24} {:>12} {:>12} {:>12}",
            "# program", "instructions", "machine code", "ns a packet"
        );
        for (name, cost) in &self.costs {
            let pace = cost
                .pace
                .map_or_else(|| NONE.to_owned(), |pace| pace.to_string());
            let _ = writeln!(
                text,
                "{name:<24} {:>12} {:>12} {pace:>12}",
                cost.verified, cost.machine_code
            );
        }
        text
    }

    fn read(path: &Path) -> Result<Option<Self>> {
        if !path.exists() {
            return Ok(None);
        }
        Self::parse(&std::fs::read_to_string(path)?).map(Some)
    }

    fn parse(text: &str) -> Result<Self> {
        let kernel = text
            .lines()
            .find_map(|line| line.strip_prefix(Self::KERNEL));
        let kernel = kernel
            .context("the table does not name its kernel")?
            .to_owned();
        let rows = text.lines().filter(|line| !line.starts_with('#'));
        let costs = rows.map(row).collect::<Result<_>>()?;
        Ok(Self { kernel, costs })
    }
}

fn row(line: &str) -> Result<(String, Cost)> {
    let [name, verified, machine_code, pace] = line.split_whitespace().collect::<Vec<_>>()[..]
    else {
        bail!("not a row of the table: {line}");
    };
    Ok((
        name.to_owned(),
        Cost {
            verified: verified.parse()?,
            machine_code: machine_code.parse()?,
            pace: match pace {
                NONE => None,
                number => Some(number.parse()?),
            },
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(verified: u64) -> Table {
        let cost = Cost {
            verified,
            machine_code: 900,
            pace: Some(150),
        };
        Table {
            kernel: "6.12.3".to_owned(),
            costs: BTreeMap::from([("from_pod".to_owned(), cost)]),
        }
    }

    #[test]
    fn a_table_reads_as_it_was_written() {
        let table = table(1200);
        assert!(Table::parse(&table.text()).is_ok_and(|read| read == table));
    }

    #[test]
    fn growth_within_a_tenth_passes() {
        assert!(grown(&table(1000), &table(1100)).is_empty());
    }

    #[test]
    fn growth_beyond_a_tenth_is_named() {
        let changes = grown(&table(1000), &table(1101));
        assert_eq!(changes, ["from_pod: 1101 instructions, and they were 1000"]);
    }

    #[test]
    fn programs_that_come_and_go_are_named() {
        let none = Table {
            kernel: "6.12.3".to_owned(),
            costs: BTreeMap::new(),
        };
        assert_eq!(grown(&none, &table(1)), ["from_pod: is new"]);
        assert_eq!(grown(&table(1), &none), ["from_pod: is gone"]);
    }

    #[test]
    fn patch_releases_are_of_one_series() {
        assert_eq!(series("6.12.3"), series("6.12.40"));
        assert_ne!(series("6.12.3"), series("6.18.3"));
    }
}
