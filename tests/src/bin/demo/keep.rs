//! `--keep`: leaving everything standing until the audience has seen enough.

use anyhow::Result;
use e2e::{GATEWAYS, Machine, NODE, SOCKET, WORLD, program};

use crate::cast::Cast;
use crate::screen::Screen;

pub(crate) fn hold(screen: &mut Screen, cast: &Cast) -> Result<()> {
    screen.section("It is yours: from another terminal, as root");
    let sandbox = &cast.sandbox;
    let mut places = vec![&sandbox.node, &sandbox.world];
    places.extend(cast.pods.iter().map(|pod| &pod.machine));
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
    screen.note("\nReturn ends it and takes everything down; so does killing this process.");
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line)? == 0 {
        // Nobody can press a key: then only a signal ends it, and the kernel takes everything down with us.
        loop {
            std::thread::park();
        }
    }
    Ok(())
}

fn shell(machine: &Machine) -> String {
    format!("{:<6} {}", machine.name(), machine.nsenter())
}
