//! What the verifier thinks of the object.

use abi::maps::programs;
use anyhow::{Context as _, Result};
use e2e::{Machine, Mounts};

use crate::object::{self, Object};

/// All programs for packets.
const PROGRAMS: [&str; 6] = [
    programs::FROM_POD,
    programs::FROM_BUSY_POD,
    programs::TO_POD,
    programs::UPLINK_IN,
    programs::UPLINK_OUT,
    programs::SWEEP,
];

/// Most instructions that the verifier may walk for one program; its own limit is a million.
const BUDGET: u32 = 250_000;

#[test]
fn the_verifier_walks_no_program_for_long() -> Result<()> {
    let machine = Machine::new("node", &Mounts::new()?)?;
    machine.run(|| {
        let mut object = Object::load(abi::maps::FLOWS_CAPACITY)?;
        let mut sum = 0;
        for name in PROGRAMS {
            let program = object::program(&mut object.loaded, name)?;
            let count = program
                .info()?
                .verified_instruction_count()
                .context("this kernel does not tell how much it verified")?;
            println!("{name}: {count} instructions verified");
            assert!(count < BUDGET, "{name} is too much for the verifier");
            sum += count;
        }
        println!("all: {sum} instructions verified");
        Ok(())
    })
}
