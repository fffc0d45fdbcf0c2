//! Sysctls whose values are long.

mod support;

use kernel::Kernel;
use planner::{Scope, Step};
use support::*;

/// The kernel tells as much of a set as fits into the first read, and takes a page of it at a time.
#[test]
fn a_long_set_of_ports_is_written_and_read_whole() {
    on_a_node(|node| {
        let mut host = node.host();
        let ports: Vec<String> = (1..=2_000).map(|port| (port * 3).to_string()).collect();
        let key = planner::reserved_ports_key();
        for value in [ports.join(","), String::new()] {
            let step = Step::SetSysctl {
                key: key.clone(),
                value: value.clone(),
                previous: String::new(),
            };
            execute(&mut host, &[step]);
            let observed = host.observe(&Scope::Sysctls([key.clone()].into())).unwrap();
            assert_eq!(observed.sysctls[&key], value);
        }
    });
}
