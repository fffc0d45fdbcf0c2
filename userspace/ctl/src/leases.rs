//! `viaductctl leases`: addresses of pods, by network.

use anyhow::Result;
use api::{Client, Lease, path};

use crate::output::Output;
use crate::render::table::styled_table;
use crate::render::{TableStyle, row, short_id, text};
use crate::{decode, get};

/// Options of `viaductctl leases`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Leases {
    #[command(flatten)]
    output: Output,
}

impl Leases {
    /// Returns a table of the agent's leases, or its answer as data.
    pub(crate) fn run(self, client: &Client) -> Result<String> {
        let reply = get(client, path::LEASES)?;
        match self.output.data() {
            Some(format) => format.reply(&reply),
            None => Ok(table(&decode::<Vec<_>>(&reply)?, self.output.style())),
        }
    }
}

fn table(leases: &[Lease], style: TableStyle) -> String {
    if leases.is_empty() {
        return "No addresses.\n".to_owned();
    }
    let rows = leases.iter().map(|lease| {
        row([
            text(&lease.address),
            text(&lease.network),
            text(short_id(&lease.container_id)),
            text(&lease.ifname),
        ])
    });
    let header = ["ADDRESS", "NETWORK", "CONTAINER", "INTERFACE"];
    styled_table(&header, rows, style)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLE: TableStyle = TableStyle {
        headers: true,
        wide: false,
    };

    fn lease(network: &str, address: &str) -> Lease {
        Lease {
            network: network.to_owned(),
            address: address.to_owned(),
            container_id: "0123456789abcdef".to_owned(),
            ifname: "eth0".to_owned(),
        }
    }

    #[test]
    fn each_lease_is_a_line_with_its_network_and_container() {
        let leases = [lease("default", "10.1.0.2"), lease("blue", "fd00::7")];
        insta::assert_snapshot!(table(&leases, STYLE), @r"
        ADDRESS   NETWORK  CONTAINER     INTERFACE
        10.1.0.2  default  0123456789ab  eth0
        fd00::7   blue     0123456789ab  eth0
        ");
        assert_eq!(table(&[], STYLE), "No addresses.\n");
    }
}
