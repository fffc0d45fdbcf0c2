//! Verifier cost of the programs.

use abi::maps::programs;
use anyhow::{Context as _, Result};
use e2e::{Machine, Mounts};

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
        let mut object = Object::load(abi::maps::FLOWS_CAPACITY)?;
        let mut sum = 0;
        for name in PROGRAMS {
            let program = object::program(&mut object.loaded, name)?;
            let count = program
                .info()?
                .verified_instruction_count()
                .context("this kernel does not report the number of verified instructions")?;
            println!("{name}: {count} instructions verified");
            assert!(
                count < BUDGET,
                "{name}: {count} verified instructions exceed {BUDGET}"
            );
            sum += count;
        }
        println!("all: {sum} instructions verified");
        Ok(())
    })
}
