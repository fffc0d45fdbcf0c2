//! Verifier cost of the programs.

use std::collections::BTreeMap;

use abi::maps::programs;
use anyhow::{Context as _, Result};
use e2e::{Machine, Mounts};
use model::DatapathLogLevel;

use crate::object::{self, Object};

/// All programs that process packets, and the sweep.
const PROGRAMS: [&str; 6] = [
    programs::FROM_POD,
    programs::FROM_BUSY_POD,
    programs::TO_POD,
    programs::UPLINK_IN,
    programs::UPLINK_OUT,
    programs::SWEEP,
];

/// Maximum number of verified instructions of one program; the verifier's own limit is one million.
const BUDGET: u32 = 300_000;

#[test]
fn programs_stay_within_the_verifier_instruction_budget() -> Result<()> {
    let machine = Machine::new("node", &Mounts::new()?)?;
    machine.run(|| {
        for log in [DatapathLogLevel::Off, DatapathLogLevel::Trace] {
            let mut sum = 0;
            for (name, cost) in costs(log)? {
                let count = cost.verified;
                println!("log {log}: {name}: {count} instructions verified");
                assert!(
                    count < BUDGET,
                    "log {log}: {name}: {count} verified instructions exceed {BUDGET}"
                );
                sum += count;
            }
            println!("log {log}: all: {sum} instructions verified");
        }
        Ok(())
    })
}

#[test]
fn the_datapath_log_costs_machine_code_only_while_it_is_on() -> Result<()> {
    let machine = Machine::new("node", &Mounts::new()?)?;
    machine.run(|| {
        let off = costs(DatapathLogLevel::Off)?;
        let mut before = off.clone();
        for log in DatapathLogLevel::ALL.into_iter().skip(1) {
            let now = costs(log)?;
            // A level has the records of the level before, and more or as many.
            for (name, cost) in &now {
                let (of_off, of_before) = (off[name].machine_code, before[name].machine_code);
                assert!(cost.machine_code >= of_before, "{name} at {log}");
                let has_log = *name != programs::SWEEP;
                assert_eq!(cost.machine_code > of_off, has_log, "{name} at {log}");
            }
            before = now;
        }
        // A record alone is some thousand bytes: none is left.
        for (name, cost) in &before {
            println!(
                "{name}: {} bytes, {} with all records",
                off[name].machine_code, cost.machine_code
            );
        }
        Ok(())
    })
}

/// The verifier's cost of a program.
#[derive(Clone, Copy, Debug)]
struct Cost {
    verified: u32,
    machine_code: u32,
}

/// Loads the programs with a level of the datapath log.
fn costs(log: DatapathLogLevel) -> Result<BTreeMap<&'static str, Cost>> {
    let mut object = Object::load_with_log(abi::maps::FLOWS_CAPACITY, log)?;
    let mut cost = |name| {
        let info = object::program(&mut object.loaded, name)?.info()?;
        let verified = info
            .verified_instruction_count()
            .context("this kernel does not report the number of verified instructions")?;
        let machine_code = info.size_jitted();
        Ok((
            name,
            Cost {
                verified,
                machine_code,
            },
        ))
    };
    PROGRAMS.into_iter().map(&mut cost).collect()
}
