//! Loads all programs of the BPF object, and compares the verifier's instruction counts with the
//! committed table.
//!
//! `cargo xtask verify` runs it as root, on this kernel and on others. The verifier rejects a
//! program beyond a million instructions over all paths, and small changes can multiply the count,
//! so growth is reported early. Counts of a kernel series that is not in the table are printed, not
//! compared. The time per packet is not compared either, because it depends on the machine and its
//! load.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the program prints the table"
)]

mod drop_cost;
mod hostport_lookup;
mod packet_time;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use abi::maps::programs;
use anyhow::{Context as _, Result, bail};
use aya::programs::{Program, ProgramError, ProgramType};
use aya::sys::{BpfHelper, is_helper_supported};
use aya::{Ebpf, EbpfLoader};
use clap::Parser;
use model::DatapathLogLevel;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

use crate::table::{Cost, Table, Tables};

/// Loads a BPF object and prints the verifier's cost of each program.
#[derive(Parser)]
struct Args {
    /// Path of the BPF object
    object: PathBuf,
    /// Committed table to compare with [default: only print the counts]
    table: Option<PathBuf>,
    /// Write the new counts into the table
    #[arg(long, requires = "table")]
    bless: bool,
    /// Output of this command on another kernel, to compare as well
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
    compare(&committed, &today)
}

fn compare(committed: &Tables, today: &[Table]) -> Result<()> {
    let mut changes = Vec::new();
    for table in today {
        match committed.compare(table) {
            Some(of_kernel) => changes.extend(of_kernel),
            None => println!("kernel {} not compared: not in the table", table.kernel),
        }
    }
    if !changes.is_empty() {
        bail!(
            "{}\nreduce the cost, or accept it with --bless",
            changes.join("\n")
        );
    }
    Ok(())
}

/// Loads all programs; measures the time per packet too if `timed`.
fn measure(object: &Path, timed: bool) -> Result<Table> {
    let bytes =
        std::fs::read(object).with_context(|| format!("cannot read {}", object.display()))?;
    let bpffs = private_bpffs()?;
    let mut costs = BTreeMap::new();
    let mut loaded = load_all(&bytes, (bpffs.path(), DatapathLogLevel::Off), &mut costs)?;
    if timed {
        time(&mut loaded, &mut costs)?;
    }
    drop(loaded);
    load_all(&bytes, (bpffs.path(), DatapathLogLevel::Trace), &mut costs)?;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let kernel = release
        .trim()
        .split('-')
        .next()
        .unwrap_or_default()
        .to_owned();
    Ok(Table { kernel, costs })
}

/// Loads the programs with a level of the datapath log, and adds their costs. With a log, only
/// those that have one, under names such as `from_pod/trace`.
fn load_all(
    object: &[u8],
    (pins, log): (&Path, DatapathLogLevel),
    costs: &mut BTreeMap<String, Cost>,
) -> Result<Ebpf> {
    let level = log.number();
    let helpers = kernel::helper_constants();
    let mut options = EbpfLoader::new();
    for (constant, value) in &helpers {
        options.override_global(constant, value, true);
    }
    let mut loaded = options
        .default_map_pin_directory(pins)
        .override_global(aya_log::LEVEL, &level, true)
        .load(object)
        .context("cannot load the object")?;
    for (name, program) in loaded.programs_mut() {
        let has_log = matches!(program, Program::SchedClassifier(_)) && name != programs::SWEEP;
        let name = if matches!(program, Program::Xdp(_)) && !has_xdp_prefilter()? {
            continue;
        } else if log == DatapathLogLevel::Off {
            name.to_owned()
        } else if has_log {
            format!("{name}/{log}")
        } else {
            continue;
        };
        let cost = load(program).with_context(|| format!("cannot load {name}"))?;
        costs.insert(name, cost);
    }
    Ok(loaded)
}

fn time(loaded: &mut Ebpf, costs: &mut BTreeMap<String, Cost>) -> Result<()> {
    for (name, nanoseconds) in
        packet_time::measure(loaded).context("cannot measure the time per packet")?
    {
        if let Some(cost) = costs.get_mut(&name) {
            cost.nanoseconds = Some(nanoseconds);
        }
    }
    for (hostports, nanoseconds) in
        hostport_lookup::measure(loaded).context("cannot measure the hostport lookup")?
    {
        println!("packet to one of {hostports} hostports: {nanoseconds} ns");
    }
    for (agent, nanoseconds) in
        drop_cost::measure(loaded).context("cannot measure dropped packets")?
    {
        println!("dropped packet while the agent {agent}: {nanoseconds} ns");
    }
    Ok(())
}

/// Mounts a private bpffs for pinned maps, in a mount namespace that ends with the process.
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

/// Whether the kernel can load the XDP prefilter, which a node may do without.
fn has_xdp_prefilter() -> Result<bool> {
    let load = BpfHelper::BPF_FUNC_xdp_load_bytes;
    Ok(is_helper_supported(ProgramType::Xdp, load)?)
}

fn load(program: &mut Program) -> Result<Cost> {
    into_kernel(program)?;
    let info = program.info()?;
    Ok(Cost {
        verified: info.verified_instruction_count().map(u64::from),
        machine_code: info.size_jitted().into(),
        nanoseconds: None,
    })
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "a new program type is an error until it is added here"
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
