//! Kernel objects of other software, which must stay unchanged.

use anyhow::{Result, ensure};
use e2e::Machine;

/// Commands that create links, addresses, routes, qdiscs, filters and rules.
const MADE: [&str; 10] = [
    "ip link add br-other type bridge",
    "ip address add 10.50.0.1/24 dev br-other",
    "ip link set br-other up",
    "ip link add veth0badcafe type veth peer name other-end",
    "ip route add 198.51.100.0/24 via 192.0.2.2",
    "tc qdisc add dev veth0badcafe root pfifo limit 77",
    "tc qdisc add dev up0 clsact",
    "tc filter add dev up0 ingress protocol ip prio 5 u32 match u32 0 0 classid 1:1",
    "nft add table inet theirs",
    "nft add set inet theirs some { type ipv4_addr ; elements = { 203.0.113.9 } ; }",
];

/// Commands that show these objects.
const VIEWS: [&str; 7] = [
    "ip -o link show br-other",
    "ip -o -4 address show br-other",
    "ip -o link show veth0badcafe",
    "ip route show 198.51.100.0/24",
    "tc qdisc show dev veth0badcafe",
    "tc filter show dev up0 ingress pref 5",
    "nft list table inet theirs",
];

/// The output of [`VIEWS`] after their creation.
pub(crate) struct ForeignObjects(Vec<String>);

impl ForeignObjects {
    /// Creates the objects.
    pub(crate) fn create(node: &Machine) -> Result<Self> {
        for line in MADE {
            node.call(line)?;
        }
        Ok(Self(view(node)?))
    }

    /// Returns an error if the output of [`VIEWS`] has changed.
    pub(crate) fn check_unchanged(&self, node: &Machine) -> Result<()> {
        let now = view(node)?;
        ensure!(
            now == self.0,
            "foreign objects changed from {:#?} to {now:#?}",
            self.0
        );
        Ok(())
    }
}

fn view(node: &Machine) -> Result<Vec<String>> {
    VIEWS.iter().map(|line| node.call(line)).collect()
}
