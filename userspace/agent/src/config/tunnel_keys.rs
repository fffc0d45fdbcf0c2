//! Parser of the keys of tunnels between nodes.

use anyhow::{Context as _, Result, ensure};
use planner::TunnelOptions;

/// Greatest VXLAN network identifier (RFC 7348).
const MAX_VNI: u32 = 0xff_ffff;

/// Returns the options. A hostname that is no name of a node counts as none.
pub(crate) fn parse(
    node: Option<&str>,
    vni: Option<u32>,
    port: Option<u16>,
) -> Result<TunnelOptions> {
    let options = TunnelOptions {
        vni: vni.unwrap_or(TunnelOptions::VNI),
        port: port.unwrap_or(TunnelOptions::PORT),
        node: match node {
            Some(name) => Some(name.parse().context("node-name")?),
            None => hostname().and_then(|name| name.parse().ok()),
        },
    };
    ensure!(
        (1..=MAX_VNI).contains(&options.vni),
        "tunnel-vni: {} is not in 1 to {MAX_VNI}",
        options.vni
    );
    ensure!(options.port != 0, "tunnel-port: 0 is no port");
    Ok(options)
}

fn hostname() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_have_defaults_and_the_hostname_and_invalid_values_are_refused() {
        let options = parse(None, None, None).unwrap();
        assert_eq!((options.vni, options.port), (118, 8118));
        let named = parse(Some("node-7"), Some(7), Some(8472)).unwrap();
        assert_eq!(named.node.unwrap().to_string(), "node-7");
        for (node, vni, port, words) in [
            (Some("a b"), None, None, "node-name"),
            (None, Some(0), None, "tunnel-vni: 0"),
            (None, Some(1 << 24), None, "tunnel-vni: 16777216"),
            (None, None, Some(0), "tunnel-port"),
        ] {
            let error = format!("{:#}", parse(node, vni, port).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
    }
}
