//! Loads every program of the BPF object and compares what the verifier says with the committed table.
//!
//! `cargo xtask verify` calls it, as root, here and on other kernels. The verifier's work is a budget of a million
//! instructions per program, and it runs out suddenly: growth is looked at while it is small. Numbers of a kernel
//! series that is not in the table are shown, but not judged; nor is the time for a packet, which is this machine's and
//! this hour's.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the table is what this program is for"
)]

mod claims;
mod pace;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use aya::programs::{Program, ProgramError};
use aya::{Ebpf, EbpfLoader};
use clap::Parser;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

use crate::table::{Cost, Table, Tables};

/// Loads a BPF object and says what the verifier makes of it.
#[derive(Parser)]
struct Args {
    /// The BPF object
    object: PathBuf,
    /// The committed table to compare with; without it instructions are counted and printed, and that is all
    table: Option<PathBuf>,
    /// Accept the numbers of today
    #[arg(long, requires = "table")]
    bless: bool,
    /// Numbers that were printed on another kernel, judged as well
    #[arg(long, value_name = "FILE")]
    given: Vec<PathBuf>,
}

fn main() -> ExitCode {
    match verify(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn verify(args: &Args) -> Result<()> {
    let mut today = vec![measure(&args.object, args.table.is_some())?];
    for given in &args.given {
        let text = std::fs::read_to_string(given)
            .with_context(|| format!("cannot read {}", given.display()))?;
        today.push(Table::parse(&text)?);
    }
    for table in &today {
        println!("{}", table.text());
    }
    let Some(path) = &args.table else {
        return Ok(());
    };
    let mut committed = Tables::parse(&std::fs::read_to_string(path).unwrap_or_default())?;
    if args.bless {
        for table in today {
            committed.put(table);
        }
        std::fs::write(path, committed.text())?;
        println!("accepted");
        return Ok(());
    }
    judge(&committed, &today)
}

fn judge(committed: &Tables, today: &[Table]) -> Result<()> {
    let mut changes = Vec::new();
    for table in today {
        match committed.compare(table) {
            Some(of_kernel) => changes.extend(of_kernel),
            None => println!("kernel {} is not in the table: not compared", table.kernel),
        }
    }
    if !changes.is_empty() {
        bail!(
            "{}\nmake it cheaper, or accept it with --bless",
            changes.join("\n")
        );
    }
    Ok(())
}

/// `timed` says whether packets shall be timed as well.
fn measure(object: &Path, timed: bool) -> Result<Table> {
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
    if timed {
        time(&mut loaded, &mut costs)?;
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

fn time(loaded: &mut Ebpf, costs: &mut BTreeMap<String, Cost>) -> Result<()> {
    for (name, pace) in pace::measure(loaded).context("cannot measure the programs' pace")? {
        if let Some(cost) = costs.get_mut(&name) {
            cost.pace = Some(pace);
        }
    }
    for (claims, pace) in claims::measure(loaded).context("cannot measure hostports")? {
        println!("a packet to one of {claims} hostports: {pace} ns");
    }
    Ok(())
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
