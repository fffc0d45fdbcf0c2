//! `--keep`: prints how to inspect the running topology, and waits for Return.

use anyhow::Result;
use e2e::{GATEWAYS, Machine, NODE, SOCKET, WORLD, program};

use crate::scenario::Scenario;
use crate::screen::Screen;

pub(crate) fn hold(screen: &mut Screen, scenario: &Scenario) -> Result<()> {
    screen.section("Inspect it from another terminal, as root");
    let sandbox = &scenario.sandbox;
    let mut places = vec![&sandbox.node, &sandbox.world];
    places.extend(scenario.pods.iter().map(|pod| &pod.machine));
    for machine in places {
        screen.note(shell(machine));
    }
    let ctl = program("bin/viaductctl");
    screen.note(format!("\non the node:  {} status", ctl.display()));
    screen.note(format!(
        "              curl --unix-socket {SOCKET} http://viaduct/v1/attachments"
    ));
    screen.note("              bpftool net");
    screen.note(format!(
        "in a pod:     ping {}    curl --max-time 1 telnet://{}:7000",
        GATEWAYS[0], WORLD[0]
    ));
    screen.note(format!(
        "in the world: curl --max-time 1 telnet://{}:8080",
        NODE[0]
    ));
    screen
        .note("\nPress Return to remove everything. Killing this process removes everything too.");
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line)? == 0 {
        // Standard input is closed: wait for a signal. The kernel then removes everything with the
        // process.
        loop {
            std::thread::park();
        }
    }
    Ok(())
}

fn shell(machine: &Machine) -> String {
    format!("{:<6} {}", machine.name(), machine.nsenter())
}
