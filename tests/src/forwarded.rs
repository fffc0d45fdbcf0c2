//! How many packets the stack of a machine has forwarded: none of those on the fast path.

use anyhow::{Context as _, Result};

use crate::Machine;

impl Machine {
    /// Returns how many packets of IPv4 (`family` 0) or IPv6 (1) the stack has forwarded.
    pub fn forwarded(&self, family: usize) -> Result<u64> {
        let value = if family == 1 {
            of_ipv6(&self.call("cat /proc/net/snmp6")?)
        } else {
            of_ipv4(&self.call("cat /proc/net/snmp")?)
        };
        Ok(value.context("no count of forwarded packets")?.parse()?)
    }
}

/// Returns the counter of a table with a line for each.
fn of_ipv6(table: &str) -> Option<String> {
    let line = table
        .lines()
        .find(|line| line.starts_with("Ip6OutForwDatagrams"))?;
    line.split_whitespace().nth(1).map(str::to_owned)
}

/// Returns the counter of a table with a line of names and a line of values for each protocol.
fn of_ipv4(table: &str) -> Option<String> {
    let mut lines = table.lines().filter(|line| line.starts_with("Ip:"));
    let (mut names, values) = (lines.next()?.split_whitespace(), lines.next()?);
    let at = names.position(|name| name == "ForwDatagrams")?;
    values.split_whitespace().nth(at).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_in_both_forms() {
        let table = "Ip: Forwarding ForwDatagrams\nIp: 1 17\nIcmp: InMsgs\nIcmp: 3\n";
        assert_eq!(of_ipv4(table).as_deref(), Some("17"));
        let table = "Ip6InReceives 5\nIp6OutForwDatagrams 23\n";
        assert_eq!(of_ipv6(table).as_deref(), Some("23"));
        assert_eq!((of_ipv4(""), of_ipv6("")), (None, None));
    }
}
