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

    /// Returns the rules of other software: neither Viaduct's chain nor the rule that jumps to it.
    pub fn foreign(self, node: &Machine) -> Result<String> {
        if self == Self::Native {
            let table = node.call("nft --stateless list table inet mine")?;
            return Ok(without_chain(&table));
        }
        self.all(node).map(|rules| without_own_lines(&rules))
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

/// The table as it was before Viaduct has added its chain, which is the last one.
fn without_chain(table: &str) -> String {
    let before = table.split("\n\tchain VIADUCT-FORWARD").next();
    let is_end = |end: char| end == '}' || end.is_whitespace();
    without_own_lines(before.unwrap_or_default().trim_end_matches(is_end))
}

/// The lines that neither add nor name Viaduct's chain.
fn without_own_lines(rules: &str) -> String {
    let lines = rules.lines().filter(|line| !line.contains("VIADUCT"));
    lines.fold(String::new(), |all, line| all + line + "\n")
}

/// Executes rules in the syntax of nft.
pub fn write_rules(node: &Machine, rules: &str) -> Result<()> {
    node.mounts()
        .run(|| std::fs::write("/run/rules.nft", rules))?;
    node.call("nft -f /run/rules.nft").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_rules_are_those_without_viaducts_chain() {
        let rules = "-P FORWARD DROP\n-N VIADUCT-FORWARD\n-A FORWARD -j VIADUCT-FORWARD\n\
                     -A FORWARD -j USER\n-A VIADUCT-FORWARD -i cbr0 -j ACCEPT\n";
        let foreign = without_own_lines(rules);
        assert_eq!(foreign, "-P FORWARD DROP\n-A FORWARD -j USER\n");
        let bare = "table inet mine {\n\tchain forward {\n\t\taccept\n\t}\n}\n";
        let with_chain = "table inet mine {\n\tchain forward {\n\t\taccept\n\
                          \t\tjump VIADUCT-FORWARD\n\t}\n\n\tchain VIADUCT-FORWARD {\n\t}\n}\n";
        assert_eq!(without_chain(with_chain), without_chain(bare));
        assert!(without_chain(bare).contains("accept"));
    }
}
