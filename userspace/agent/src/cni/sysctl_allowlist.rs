//! Allowlist of sysctls that network configurations may change; without the file all are allowed.
//!
//! The file is that of the reference tuning plugin: one regular expression per line.

use std::io::ErrorKind;

use cni::{Error, TuningRequest};
use regex_automata::meta::Regex;

const FILE: &str = "/etc/cni/tuning/allowlist.conf";

/// Refuses sysctls that match no line of the allowlist.
pub(crate) fn admit(request: &TuningRequest) -> Result<(), Error> {
    let sysctls = &request.sysctl_keys;
    if sysctls.is_empty() {
        return Ok(());
    }
    match ipam::small_files::read(FILE) {
        Ok(text) => check(&text, sysctls.iter().map(|(path, key)| [&**path, key])),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io(format!("{FILE}: {error}"))),
    }
}

/// Matches sysctls against the list, each by its path and by its key in the configuration. The
/// reference matches the key alone: an expression with `IFNAME` is for a key with `IFNAME`. Its
/// expressions are for names with dots, and a path has slashes, so each is matched in both forms.
fn check<'a>(list: &str, mut sysctls: impl Iterator<Item = [&'a str; 2]>) -> Result<(), Error> {
    let allowed: Vec<Regex> = list
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| {
            let why = |error| Error::invalid_config(format!("{FILE}: {line}: {error}"));
            Regex::new(line).map_err(why)
        })
        .collect::<Result<_, _>>()?;
    let matches = |name: &str| allowed.iter().any(|line| line.is_match(name));
    let is_allowed = |name: &&str| matches(name) || matches(&name.replace('/', "."));
    match sysctls.find(|names| !names.iter().any(is_allowed)) {
        None => Ok(()),
        Some([path, _]) => Err(Error::invalid_config(format!(
            "sysctl {path} is not allowed by {FILE}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sysctl_must_match_a_line_of_the_list() {
        let list = "^net\\.ipv4\\.conf\\.[a-z0-9]+\\.arp_filter$\n\n^net.core\n";
        let admitted = |path| check(list, [[path; 2]].into_iter()).is_ok();
        assert!(admitted("net/ipv4/conf/eth0/arp_filter"));
        assert!(admitted("net/core/somaxconn"));
        assert!(!admitted("net/ipv4/ip_forward"));
        let one = || [["net/x"; 2]].into_iter();
        assert_eq!(check("(", one()).unwrap_err().code, 7);
        assert!(check("", one()).is_err(), "an empty list allows none");
    }

    /// The first list is that of an operator who knows the reference plugin.
    #[test]
    fn a_sysctl_matches_with_ifname_as_configured_and_with_the_interfaces_name() {
        let path = "net/ipv4/conf/eth0/arp_filter";
        let admitted = |list: &str, key: &str| check(list, [[path, key]].into_iter()).is_ok();
        let dotted = "net.ipv4.conf.IFNAME.arp_filter";
        let slashed = "net/ipv4/conf/IFNAME/arp_filter";
        for key in [dotted, slashed] {
            assert!(admitted(r"^net\.ipv4\.conf\.IFNAME\.[a-z_]*$", key));
            assert!(admitted(r"^net\.ipv4\.conf\.eth0\.arp_filter$", key));
            assert!(!admitted(r"^net\.ipv6\.conf\.IFNAME\.[a-z_]*$", key));
        }
        let literal = "net.ipv4.conf.eth0.arp_filter";
        assert!(!admitted(r"^net\.ipv4\.conf\.IFNAME\.", literal));
        assert!(admitted(r"^net\.ipv4\.conf\.eth0\.", literal));
    }
}
