//! Sysctls with long values.

mod support;

use kernel::Observe as _;
use steps::{Step, SysctlQuery};
use support::*;

/// The kernel returns what fits into the first read of a port set, and accepts a page per write.
#[test]
fn a_long_port_set_is_written_and_read_completely() {
    on_a_node(|node| {
        let mut host = node.host();
        let ports: Vec<String> = (1..=2_000).map(|port| (port * 3).to_string()).collect();
        let key = planner::local_reserved_ports_key();
        for value in [ports.join(","), String::new()] {
            let step = Step::SetSysctl {
                key: key.clone(),
                value: value.clone(),
                previous: String::new(),
            };
            execute(&mut host, &[step]);
            let seen = host.observe(&SysctlQuery([key.clone()].into())).unwrap();
            assert_eq!(seen[&key], Some(value));
        }
    });
}
