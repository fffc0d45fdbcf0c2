//! Rules of other software that drop what a node forwards, unless a rule accepts it.

use anyhow::Result;

use crate::Machine;

/// The packet filter of a node with rules of other software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketFilter {
    /// iptables by nftables.
    IptablesNft,
    /// iptables as it was before nftables.
    Legacy,
    /// A table of the user's own, without iptables.
    Native,
}

const NATIVE: &str = r#"
table inet mine {
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state vmap { invalid : drop }
        iifname "other" accept
    }
}
"#;

impl PacketFilter {
    /// Returns the commands for IPv4 and IPv6.
    pub fn tools(self) -> [&'static str; 2] {
        match self {
            Self::Legacy => ["iptables-legacy", "ip6tables-legacy"],
            Self::IptablesNft | Self::Native => ["iptables-nft", "ip6tables-nft"],
        }
    }

    /// Drops forwarded packets of both families by default, beside some rules.
    pub fn drop_by_default(self, node: &Machine) -> Result<()> {
        if self == Self::Native {
            return write_rules(node, NATIVE);
        }
        for tool in self.tools() {
            for line in [
                "-N USER",
                "-P FORWARD DROP",
                "-A FORWARD -j USER",
                "-A USER -j RETURN",
                "-A FORWARD -i other0 ! -o other0 -j ACCEPT",
                "-A INPUT -i other0 -j DROP",
            ] {
                node.call(&format!("{tool} {line}"))?;
            }
        }
        Ok(())
    }

    /// Removes the rules, and makes the policy accept.
    pub fn accept(self, node: &Machine) -> Result<()> {
        if self == Self::Native {
            return node.call("nft flush ruleset").map(drop);
        }
        for tool in self.tools() {
            node.call(&format!("{tool} -P FORWARD ACCEPT"))?;
            node.call(&format!("{tool} -F"))?;
            node.call(&format!("{tool} -X USER"))?;
        }
        Ok(())
    }

    /// As [`PacketFilter::all`], without the rules of Viaduct.
    pub fn foreign(self, node: &Machine) -> Result<String> {
        let own = |line: &&str| !line.contains("VIADUCT");
        if self == Self::Native {
            let listed = node.call("nft --stateless list table inet mine")?;
            let text = listed
                .split("\n\tchain VIADUCT-FORWARD")
                .next()
                .unwrap_or_default()
                .trim_end_matches(|end: char| end == '}' || end.is_whitespace());
            return Ok(text.lines().filter(own).collect::<Vec<_>>().join("\n"));
        }
        let mut all = String::new();
        for tool in self.tools() {
            let text = node.call(&format!("{tool} -S"))?;
            all += &text.lines().filter(own).collect::<Vec<_>>().join("\n");
        }
        Ok(all)
    }

    /// Returns the rules of both families without counters.
    pub fn all(self, node: &Machine) -> Result<String> {
        if self == Self::Native {
            return node.call("nft --stateless list ruleset");
        }
        let [v4, v6] = self.tools();
        Ok(node.call(&format!("{v4} -S"))? + &node.call(&format!("{v6} -S"))?)
    }
}

/// Executes rules in the syntax of nft.
pub fn write_rules(node: &Machine, rules: &str) -> Result<()> {
    node.mounts()
        .run(|| std::fs::write("/run/rules.nft", rules))?;
    node.call("nft -f /run/rules.nft").map(drop)
}
