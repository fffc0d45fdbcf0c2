//! Allowlist of sysctls that network configurations may change; without the file all are allowed.
//!
//! The file is that of the reference tuning plugin: one regular expression per line.

use std::io::ErrorKind;

use cni::Error;
use model::InterfaceSettings;
use regex_automata::meta::Regex;

const FILE: &str = "/etc/cni/tuning/allowlist.conf";

/// Refuses sysctls that match no line of the allowlist.
pub(crate) fn admit(settings: &InterfaceSettings) -> Result<(), Error> {
    if settings.sysctls.is_empty() {
        return Ok(());
    }
    match ipam::small_files::read(FILE) {
        Ok(text) => check(&text, settings.sysctls.keys().map(String::as_str)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io(format!("{FILE}: {error}"))),
    }
}

/// Matches sysctl paths, written with slashes, against the list. Its expressions are for names with
/// dots; a path that contains dots itself is also matched as it is.
fn check<'a>(list: &str, mut paths: impl Iterator<Item = &'a str>) -> Result<(), Error> {
    let allowed: Vec<Regex> = list
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|line| {
            let why = |error| Error::invalid_config(format!("{FILE}: {line}: {error}"));
            Regex::new(line).map_err(why)
        })
        .collect::<Result<_, _>>()?;
    let is_allowed = |path: &str| {
        let dotted = path.replace('/', ".");
        allowed
            .iter()
            .any(|line| line.is_match(&dotted) || line.is_match(path))
    };
    match paths.find(|path| !is_allowed(path)) {
        None => Ok(()),
        Some(path) => Err(Error::invalid_config(format!(
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
        let admitted = |path| check(list, [path].into_iter()).is_ok();
        assert!(admitted("net/ipv4/conf/eth0/arp_filter"));
        assert!(admitted("net/core/somaxconn"));
        assert!(!admitted("net/ipv4/ip_forward"));
        assert_eq!(check("(", ["net/x"].into_iter()).unwrap_err().code, 7);
        assert!(
            check("", ["net/x"].into_iter()).is_err(),
            "an empty list allows none"
        );
    }
}
