//! Creates other hostports on a node, in addition to the measured one.
//!
//! Viaduct's are created by its plugin. The reference's rules are written at once, in the form that
//! the plugins write for the same number of pods with one port each: with the plugins, ten thousand
//! would take hours.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use e2e::{Config, Pod};
use serde_json::{Value, json};

use super::{POD_CIDR, Reference, Viaduct};

/// The first of these ports; measured pods publish lower ones.
const FIRST: u16 = 20_000;
/// Number of Viaduct's pods that share the ports. It is the same for any number of ports, so that
/// only the cost of ports is measured.
const PODS: u16 = 100;

/// Attaches pods with `count` hostports in total, which stay until dropped; no pods for no port.
pub(super) fn viaduct(node: &Viaduct, count: u16) -> Result<Vec<Pod>> {
    let numbers = 0..if count == 0 { 0 } else { PODS };
    numbers
        .map(|number| {
            let ports: Vec<_> = (number..count)
                .step_by(usize::from(PODS))
                .map(|port| mapping(FIRST + port))
                .collect();
            let mut pod = node.sandbox.pod(&format!("crowd-{number}"))?;
            pod.add_with(Config::new("1.1.0").map_ports(&ports))?;
            Ok(pod)
        })
        .collect()
}

/// Returns a mapping of IPv4 only, as the reference's rules: each port needs one file descriptor
/// per family.
fn mapping(host: u16) -> Value {
    json!({ "hostPort": host, "containerPort": 80, "protocol": "tcp", "hostIP": "0.0.0.0" })
}

/// Writes the rules of `count` pods of the reference with one port each, in addition to those of an
/// attached pod.
pub(super) fn reference(node: &Reference, count: u16) -> Result<()> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(rules(count).as_bytes())?;
    let restore = node.tool("iptables-restore");
    let path = file.path().display();
    let machine = &node.sandbox.node;
    machine
        .call(&format!("{restore} --noflush {path}"))
        .context("cannot write the rules of other hostports")
        .map(drop)
}

/// Returns the rules of the nat table, for iptables-restore: for each pod a chain for its port and
/// one for its address, and a jump to each.
fn rules(count: u16) -> String {
    let mut chains = String::new();
    let mut rules = String::new();
    for (number, port) in (0_u32..).zip(FIRST..FIRST + count) {
        let pod = Ipv4Addr::from_bits(Ipv4Addr::new(10, 244, 8, 0).to_bits() + number % 2000);
        let (dnat, masquerade) = (
            format!("CNI-DN-{number:021x}"),
            format!("CNI-{number:024x}"),
        );
        let named = format!("name: \\\"reference\\\" id: \\\"crowd-{number}\\\"");
        let _ = write!(chains, ":{dnat} - [0:0]\n:{masquerade} - [0:0]\n");
        let _ = write!(
            rules,
            "-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment \"dnat {named}\" -m multiport --dports {port} -j {dnat}\n\
             -A {dnat} -s {POD_CIDR} -p tcp -m tcp --dport {port} -j CNI-HOSTPORT-SETMARK\n\
             -A {dnat} -s 127.0.0.1/32 -p tcp -m tcp --dport {port} -j CNI-HOSTPORT-SETMARK\n\
             -A {dnat} -p tcp -m tcp --dport {port} -j DNAT --to-destination {pod}:80\n\
             -A POSTROUTING -s {pod}/32 -m comment --comment \"{named}\" -j {masquerade}\n\
             -A {masquerade} -d {POD_CIDR} -m comment --comment \"{named}\" -j ACCEPT\n\
             -A {masquerade} ! -d 224.0.0.0/4 -m comment --comment \"{named}\" -j MASQUERADE\n",
        );
    }
    format!("*nat\n{chains}{rules}COMMIT\n")
}
